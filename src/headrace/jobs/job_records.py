"""Define the records of jobs in the cluster, and the sums of their tasks. Values and pure functions only.

    jobs/<id>                 JobRecord: one for each job, kept after its end
    jobs/<id>/parts/<node>    TaskRecord: the progress of one node; leased, so that it disappears with its node
    pins/<path>               PinRecord: see pins.py

All are JSON. No time of one host is compared with that of another: records have durations only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import UsageError
from headrace.jobs.options import parse_options
from headrace.ring.ring import Ring
from headrace.wire.messages import JobRow, JobState

JOBS = "jobs/"
FAILED_KEPT_MAX = 100
"""Most failures that a task names; it counts all of them."""

KINDS = ("load", "free", "pin", "unpin")
"""Kinds of jobs that run in the whole cluster."""

RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"
ENDS = (DONE, CANCELLED, FAILED)

COUNT_MAX = 1 << 53
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
"""A count whose bound keeps sums over all nodes within the integers of every message."""
BYTES_S_MAX = 1e15
BytesPerSecond = Annotated[float, msgspec.Meta(ge=0, le=BYTES_S_MAX)]
BYTES_S_ESTIMATE_MIN = 0.1
"""The lowest rate by which the rest of a job is estimated. A node writes none that is lower and not 0."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]

DataVersions = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=80)], Annotated[str, msgspec.Meta(max_length=64)]],
    msgspec.Meta(max_length=1),
]


class TaskProgress(msgspec.Struct, frozen=True):
    """Holds the progress of a task or of a whole job.

    `failed` has (path, reason) of the first FAILED_KEPT_MAX of `failed_files`. `listing` is true while more files may
    be discovered. `bytes_s` is the rate of the last seconds. `took_s` is measured by the clock of the reporting node.
    """

    files_done: Count = 0
    files_total: Count = 0
    bytes_done: Count = 0
    bytes_total: Count = 0
    failed_files: Count = 0
    failed: list[tuple[str, str]] = []
    listing: bool = True
    bytes_s: BytesPerSecond = 0.0
    took_s: Seconds = 0.0


class TaskRecord(msgspec.Struct, frozen=True):
    """Describes the task of one node. `ring` is the mark (`ring_mark`) of the ring that split the files; `attempt` is
    the job's attempt."""

    ring: str
    attempt: Count
    done: bool
    progress: TaskProgress


class JobRecord(msgspec.Struct, frozen=True):
    """A job. `node` accepted it. `state` is running or one of ENDS; `failed` means that it completed, but some files
    failed. `paths` are the roots of a retry, where files failed; otherwise the job covers `path`. `summary` is set at
    its end. `data` has the id of the seal whose files the job concerns, by its name."""

    id: str
    kind: str
    path: str
    options: dict[str, str]
    node: str
    state: str = RUNNING
    attempt: Count = 1
    paths: list[str] = []
    summary: TaskProgress | None = None
    data: DataVersions = {}


def decode_job(id: str, raw: bytes) -> JobRecord:
    """Decode the record of a job. Raise msgspec.DecodeError for one that no node could run: of another id, or with a
    kind, a state or options that do not exist."""
    record = decode_json(raw, JobRecord)
    if record.id != id:
        raise msgspec.ValidationError(f"the record is of job {record.id!r}")
    if record.kind not in KINDS:
        raise msgspec.ValidationError(f"no such kind: {record.kind!r}")
    if record.state not in (RUNNING, *ENDS):
        raise msgspec.ValidationError(f"no such state: {record.state!r}")
    try:
        parse_options(record.kind, record.options)
    except (UsageError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise msgspec.ValidationError(str(error)) from error
    return record


def job_key(id: str) -> str:
    return f"{JOBS}{id}"


def task_key(id: str, node: str) -> str:
    return f"{JOBS}{id}/parts/{node}"


def parse_key(key: str) -> tuple[str, str]:
    """Return the id and the node of a key; the node of a job's own key is ""."""
    id, _, rest = key.removeprefix(JOBS).partition("/parts/")
    return id, rest


def ring_mark(ring: Ring) -> str:
    """Return a digest that is the same on all nodes for the same members, whatever epochs they count."""
    members = "\n".join(f"{member.id}\t{member.weight}\t{member.zone}" for member in ring.members)
    return hashlib.blake2s(members.encode(), digest_size=8).hexdigest()


def sum_progress(parts: Iterable[TaskProgress]) -> TaskProgress:
    """Return the sum of all parts. A file that two nodes name as failed counts as one failure. Whatever nodes report,
    the sum is a valid progress: it is part of the record that ends the job."""
    parts = list(parts)
    failed: dict[str, str] = {}
    for part in parts:
        for path, reason in part.failed:
            failed.setdefault(path, reason)
    twice = sum(len(part.failed) for part in parts) - len(failed)
    return TaskProgress(
        files_done=_total(part.files_done for part in parts),
        files_total=_total(part.files_total for part in parts),
        bytes_done=_total(part.bytes_done for part in parts),
        bytes_total=_total(part.bytes_total for part in parts),
        failed_files=max(len(failed), _total(part.failed_files for part in parts) - twice),
        failed=sorted(failed.items()),
        listing=any(part.listing for part in parts),
        bytes_s=min(BYTES_S_MAX, sum(part.bytes_s for part in parts)),
        took_s=max((part.took_s for part in parts), default=0.0),
    )


def _total(counts: Iterable[int]) -> int:
    return min(COUNT_MAX, sum(counts))


def state_of(record: JobRecord, progress: TaskProgress) -> JobState:
    done = record.state in ENDS
    return JobState(
        done=done,
        files_done=progress.files_done,
        files_total=progress.files_total,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        failed_files=progress.failed_files,
        failed=progress.failed if done else [],
        listing=progress.listing and not done,
        id=record.id,
        state=record.state,
        data=record.data,
    )


def row_of(record: JobRecord, progress: TaskProgress, nodes: Mapping[str, TaskRecord]) -> JobRow:
    left = max(0, progress.bytes_total - progress.bytes_done)
    has_rate = progress.bytes_s >= BYTES_S_ESTIMATE_MIN
    has_estimate = record.state == RUNNING and not progress.listing and has_rate
    return JobRow(
        id=record.id,
        kind=record.kind,
        path=record.path,
        options=record.options,
        node=record.node,
        state=record.state,
        attempt=record.attempt,
        files_done=progress.files_done,
        files_total=progress.files_total,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        failed_files=progress.failed_files,
        failed=progress.failed,
        listing=progress.listing and record.state == RUNNING,
        bytes_s=round(progress.bytes_s, 1) if record.state == RUNNING else 0.0,
        eta_s=round(left / progress.bytes_s, 1) if has_estimate else None,
        took_s=round(progress.took_s, 1),
        data=record.data,
        files_by_node={node: task.progress.files_done for node, task in sorted(nodes.items())},
    )
