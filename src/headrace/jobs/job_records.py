"""Jobs as the cluster's records have them, and what their parts come to together. Values and pure functions.

    jobs/<id>                 JobRecord: one of a job, kept after its end
    jobs/<id>/parts/<node>    TaskRecord: what one node did of it; leased, so that a dead node's part goes with it
    pins/<path>               PinRecord: see pins.py

All are JSON. No time of one machine is compared with that of another: durations only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from headrace.ring.ring import Ring
from headrace.wire.messages import JobRow, JobState

JOBS = "jobs/"
FAILED_KEPT_MAX = 100
"""Failures of a part that are named; all are counted."""

RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"
ENDS = (DONE, CANCELLED, FAILED)

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Sums of those of all nodes are still numbers that every message can have."""


class TaskProgress(msgspec.Struct, frozen=True):
    """How far something is. failed: (path, reason) of the first FAILED_KEPT_MAX of failed_files. listing: more files
    may be found. bytes_s: over the last seconds. took_s: by the clock of the node that says it."""

    files_done: Count = 0
    files_total: Count = 0
    bytes_done: Count = 0
    bytes_total: Count = 0
    failed_files: Count = 0
    failed: list[tuple[str, str]] = []
    listing: bool = True
    bytes_s: float = 0.0
    took_s: float = 0.0


class TaskRecord(msgspec.Struct, frozen=True):
    """ring: by which ring the files were split (`ring_mark`). attempt: of the job, when this was done."""

    ring: str
    attempt: Count
    done: bool
    figures: TaskProgress


class JobRecord(msgspec.Struct, frozen=True):
    """node: that took it. state: running, or one of ENDS; failed: it came to its end, and some files failed. paths:
    where it walks: `path`, or, tried again, what failed. summary: at its end."""

    id: str
    kind: str
    path: str
    options: dict[str, str]
    node: str
    state: str = RUNNING
    attempt: Count = 1
    paths: list[str] = []
    summary: TaskProgress | None = None


def job_key(id: str) -> str:
    return f"{JOBS}{id}"


def part_key(id: str, node: str) -> str:
    return f"{JOBS}{id}/parts/{node}"


def parse_key(key: str) -> tuple[str, str]:
    """Id and node; node "" for the job itself."""
    id, _, rest = key.removeprefix(JOBS).partition("/parts/")
    return id, rest


def ring_mark(ring: Ring) -> str:
    """The same on all nodes for the same members, whatever epochs they count."""
    told = "\n".join(f"{one.id}\t{one.weight}\t{one.zone}" for one in ring.members)
    return hashlib.blake2s(told.encode(), digest_size=8).hexdigest()


def together(parts: Iterable[TaskProgress]) -> TaskProgress:
    """The sum. A file that failed on two nodes failed once, where both name it."""
    parts = list(parts)
    failed: dict[str, str] = {}
    for one in parts:
        for path, reason in one.failed:
            failed.setdefault(path, reason)
    twice = sum(len(one.failed) for one in parts) - len(failed)
    return TaskProgress(
        files_done=sum(one.files_done for one in parts),
        files_total=sum(one.files_total for one in parts),
        bytes_done=sum(one.bytes_done for one in parts),
        bytes_total=sum(one.bytes_total for one in parts),
        failed_files=sum(one.failed_files for one in parts) - twice,
        failed=sorted(failed.items()),
        listing=any(one.listing for one in parts),
        bytes_s=sum(one.bytes_s for one in parts),
        took_s=max((one.took_s for one in parts), default=0.0),
    )


def state_of(record: JobRecord, figures: TaskProgress) -> JobState:
    done = record.state in ENDS
    return JobState(
        done=done,
        files_done=figures.files_done,
        files_total=figures.files_total,
        bytes_done=figures.bytes_done,
        bytes_total=figures.bytes_total,
        failed_files=figures.failed_files,
        failed=figures.failed if done else [],
        listing=figures.listing and not done,
        id=record.id,
        state=record.state,
    )


def row_of(record: JobRecord, figures: TaskProgress, nodes: Mapping[str, TaskRecord]) -> JobRow:
    left = figures.bytes_total - figures.bytes_done
    known = record.state == RUNNING and not figures.listing and figures.bytes_s > 0
    return JobRow(
        id=record.id,
        kind=record.kind,
        path=record.path,
        options=record.options,
        node=record.node,
        state=record.state,
        attempt=record.attempt,
        files_done=figures.files_done,
        files_total=figures.files_total,
        bytes_done=figures.bytes_done,
        bytes_total=figures.bytes_total,
        failed_files=figures.failed_files,
        failed=figures.failed,
        listing=figures.listing and record.state == RUNNING,
        bytes_s=round(figures.bytes_s, 1) if record.state == RUNNING else 0.0,
        eta_s=round(left / figures.bytes_s, 1) if known else None,
        took_s=round(figures.took_s, 1),
        files_by_node={node: part.figures.files_done for node, part in sorted(nodes.items())},
    )
