"""The recording as a time line that Perfetto and chrome://tracing open: Chrome's trace-event format, JSON.

One track for each trainer and each worker, in which moments that look alike are one slice; and how many workers were
idle, as a counter. Source: the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.diagnose.attribute import trainer_does
from headrace.diagnose.frames import TrainerPhase, WorkerActivity, innermost_own, work_of
from headrace.diagnose.recording import KernelCall, Recording, Thread, TimelineSample

_PHASES = {
    TrainerPhase.CHECKPOINT: "checkpoint",
    TrainerPhase.LOADER_START: "workers start or end",
    TrainerPhase.FETCH: "prepares samples itself",
    TrainerPhase.UNPACK: "unpacks a batch",
    TrainerPhase.WAIT_DATA: "waits for data",
    TrainerPhase.BACKWARD: "backward",
    TrainerPhase.OPTIMIZER: "optimizer",
    TrainerPhase.FORWARD: "forward",
    TrainerPhase.COPY: "copies",
    TrainerPhase.IMPORT: "imports",
    TrainerPhase.OWN: "own code",
}
_CALLS = {
    KernelCall.READ: "reads",
    KernelCall.OPEN: "opens",
    KernelCall.FAULT: "waits for a page",
    KernelCall.WRITE: "writes",
    KernelCall.SOCKET: "network",
    KernelCall.SLEEP: "sleeps",
}


def write_timeline(recording: Recording, path: str) -> None:
    """OSError when the file can't be written."""
    with open(path, "w") as file:
        json.dump({"traceEvents": list(events_of(recording)), "displayTimeUnit": "ms"}, file)


def events_of(recording: Recording) -> Iterator[dict[str, Any]]:
    for pid, name in recording.names.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}}
    trainers = sorted({one.trainer for one in recording.moments})
    for trainer in trainers:
        moments = [one for one in recording.moments if one.trainer == trainer]
        yield from _slices(
            ((one.at_s, one.span_s, _PHASES[trainer_does(one)], _args(one.main)) for one in moments), trainer
        )
        for pid in sorted({worker.pid for one in moments for worker in one.workers}):
            yield from _slices(_worker(moments, pid), pid)
        yield from _idle_counter(moments, trainer)


Seen = tuple[float, float, str, dict[str, str]]
"""When, how long, what, and where."""


def _worker(moments: Iterable[TimelineSample], pid: int) -> Iterator[Seen]:
    for one in moments:
        for worker in one.workers:
            if worker.pid == pid:
                yield one.at_s, one.span_s, _work(worker.main), _args(worker.main)


def _work(thread: Thread) -> str:
    work = work_of(thread.stack)
    if work is WorkerActivity.IDLE or (not thread.stack and thread.call is KernelCall.WAIT):
        return "idle"
    return _CALLS.get(thread.call, str(work))


def _args(thread: Thread) -> dict[str, str]:
    frame = innermost_own(thread.stack)
    where = f"{frame.name} {frame.file}:{frame.line}" if frame else ""
    return {name: text for name, text in (("path", thread.path), ("where", where)) if text}


def _slices(seen: Iterable[Seen], pid: int) -> Iterator[dict[str, Any]]:
    """Moments in a row with one name become one slice, with the place of the first."""
    current: dict[str, Any] | None = None
    for at_s, span_s, name, args in seen:
        end_us = round((at_s + span_s) * 1e6)
        if current is not None and current["name"] == name:
            current["dur"] = end_us - current["ts"]
            continue
        if current is not None:
            yield current
        start_us = round(at_s * 1e6)
        current = {
            "ph": "X", "name": name, "cat": "headrace", "pid": pid, "tid": pid,
            "ts": start_us, "dur": end_us - start_us, "args": args,
        }  # fmt: skip
    if current is not None:
        yield current


def _idle_counter(moments: Iterable[TimelineSample], trainer: int) -> Iterator[dict[str, Any]]:
    before = -1
    for one in moments:
        idle = sum(_work(worker.main) == "idle" for worker in one.workers)
        if one.workers and idle != before:
            before = idle
            yield {
                "ph": "C", "name": "idle workers", "pid": trainer, "tid": trainer,
                "ts": round(one.at_s * 1e6), "args": {"idle": idle},
            }  # fmt: skip
