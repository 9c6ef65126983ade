"""The records of jobs, as another node wrote them: whatever it reports, the sum over all nodes can be read by all."""

from __future__ import annotations

import math

import msgspec
import pytest

from headrace.base.decoding import decode_json
from headrace.jobs.job_records import (
    BYTES_S_ESTIMATE_MIN,
    BYTES_S_MAX,
    COUNT_MAX,
    JobRecord,
    TaskProgress,
    TaskRecord,
    decode_job,
    row_of,
    sum_progress,
)

JOB = JobRecord("7", "load", "/d", {}, "a")
LARGEST = TaskProgress(
    files_done=COUNT_MAX,
    files_total=COUNT_MAX,
    bytes_done=COUNT_MAX,
    bytes_total=COUNT_MAX,
    failed_files=COUNT_MAX,
    bytes_s=BYTES_S_MAX,
    took_s=1e10,
)


@pytest.mark.parametrize(
    "change",
    [{"bytes_s": 1e16}, {"bytes_s": -1.0}, {"took_s": 1e300}, {"took_s": -0.1}, {"files_done": -1}],
    ids=str,
)
def test_a_figure_that_no_node_measures_is_refused(change: dict[str, float]) -> None:
    record = TaskRecord("mark", 1, True, msgspec.structs.replace(TaskProgress(), **change))
    with pytest.raises(msgspec.ValidationError):
        decode_json(msgspec.json.encode(record), TaskRecord)


@pytest.mark.parametrize(
    "parts",
    [
        [LARGEST] * 3,
        [TaskProgress(failed_files=0, failed=[("/d/a", "why"), ("/d/b", "why")])] * 2,
        [TaskProgress()],
        [],
    ],
    ids=["largest", "more names than failures", "nothing", "no node"],
)
def test_a_sum_can_be_the_end_of_a_job(parts: list[TaskProgress]) -> None:
    """A record that no node could read would leave the job running for ever."""
    ended = msgspec.structs.replace(JOB, state="done", summary=sum_progress(parts))
    assert decode_job("7", msgspec.json.encode(ended)) == ended


def test_a_failure_that_two_nodes_name_counts_once() -> None:
    parts = [TaskProgress(failed_files=2, failed=[("/d/a", "why"), (name, "why")]) for name in ("/b", "/c")]
    assert sum_progress(parts).failed_files == 3


@pytest.mark.parametrize("bytes_s", [0.0, 5e-324, BYTES_S_ESTIMATE_MIN, BYTES_S_MAX])
@pytest.mark.parametrize("bytes_total", [0, 1, COUNT_MAX])
def test_an_estimate_is_a_time(bytes_s: float, bytes_total: int) -> None:
    progress = TaskProgress(bytes_done=1, bytes_total=bytes_total, listing=False, bytes_s=bytes_s)
    eta_s = row_of(JOB, progress, {}).eta_s
    assert (eta_s is None) == (bytes_s < BYTES_S_ESTIMATE_MIN)
    assert eta_s is None or (math.isfinite(eta_s) and eta_s >= 0)
