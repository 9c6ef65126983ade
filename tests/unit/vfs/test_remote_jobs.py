"""Jobs on nodes of other hosts are followed at a moderate rate, also if a node does not wait for their end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from headrace.vfs.remote import jobs
from headrace.vfs.remote.jobs import JOB_POLL_S, RemoteJobs
from headrace.wire.api import ApiJob
from headrace.wire.messages import JobStart

RUNNING = ApiJob(
    id="job-1",
    kind="load",
    path="/d",
    state="running",
    scope="cluster",
    options={},
    files_done=0,
    files_total=0,
    bytes_done=0,
    bytes_total=0,
    failed_files=0,
    failed=[],
    listing=True,
)


class FakeClock:
    """A clock that goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


class FakeCluster:
    """Has one job, which ends at the fifth request for its state."""

    only = None
    home = SimpleNamespace()
    changed_at = ()

    def __init__(self, clock: FakeClock, *, waits: bool) -> None:
        self._clock = clock
        self._waits = waits
        self.asked_s: list[float] = []

    def ask(self, name: str, *_: object, wait_s: float = 0.0, **__: object) -> ApiJob:
        if name == "startJob":
            return RUNNING
        self.asked_s.append(self._clock.now_s)
        if len(self.asked_s) == 5:
            return msgspec.structs.replace(RUNNING, state="done")
        if self._waits:
            self._clock.now_s += wait_s
        return RUNNING


@pytest.mark.parametrize("waits", [True, False])
def test_a_node_that_does_not_wait_is_asked_as_rarely_as_one_that_waits(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(jobs, "time", clock)
    cluster = FakeCluster(clock, waits=waits)
    states = list(RemoteJobs(cast(Any, cluster)).run(JobStart(kind="load", path="/d")))
    assert [state.done for state in states] == [False] * 5 + [True]
    assert cluster.asked_s == [1000.0 + JOB_POLL_S * number for number in range(5)]
    assert clock.slept_s == (0.0 if waits else 4 * JOB_POLL_S)
