"""Write the recording as a timeline for Perfetto and chrome://tracing: Chrome's trace-event format, JSON.

Each trainer and each worker has a track, in which consecutive equal moments are one slice. A counter shows how many
workers are idle. Source: the "Trace Event Format" document of the Chromium project.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.base.errors import UsageError
from headrace.base.mount_api import opened_directory
from headrace.base.trusted_owner import trusted_realpath
from headrace.diagnose.attribute import phase_at
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


def check_timeline(path: str) -> None:
    """Raise OSError for a path that `write_timeline` can't write. Nothing changes there."""
    exists = os.path.lexists(path)
    flags = os.O_WRONLY | os.O_NONBLOCK | (0 if exists else os.O_CREAT | os.O_EXCL)
    try:
        os.close(_open_trusted(path, flags))
    except OSError as error:
        if error.errno != errno.ENXIO:  # nobody reads a named pipe yet
            raise
    if not exists:
        os.unlink(os.path.abspath(path))


def write_timeline(recording: Recording, path: str) -> None:
    """Write the timeline to a file. Raises OSError, also for a path with a link of another user."""
    with open(path, "w", opener=_open_trusted) as file:
        json.dump({"traceEvents": list(events_of(recording)), "displayTimeUnit": "ms"}, file)


def _open_trusted(path: str, flags: int) -> int:
    above, name = os.path.split(os.path.abspath(path))
    try:
        if os.path.lexists(path):
            above, name = os.path.split(trusted_realpath(path))
        with opened_directory(trusted_realpath(above)) as directory:
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=directory)
    except UsageError as error:
        raise PermissionError(errno.EACCES, error.why) from error


def events_of(recording: Recording) -> Iterator[dict[str, Any]]:
    for pid, name in recording.names.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}}
    trainers = sorted({moment.trainer for moment in recording.moments})
    for trainer in trainers:
        moments = [moment for moment in recording.moments if moment.trainer == trainer]
        yield from _slices(
            (
                (moment.at_s, moment.span_s, _PHASES[phase_at(moment)], _args(moment.main))
                for moment in moments
            ),
            trainer,
        )
        for pid in sorted({worker.pid for moment in moments for worker in moment.workers}):
            yield from _slices(_worker(moments, pid), pid)
        yield from _idle_counter(moments, trainer)


_Interval = tuple[float, float, str, dict[str, str]]
"""Start and length in seconds, name, arguments."""


def _worker(moments: Iterable[TimelineSample], pid: int) -> Iterator[_Interval]:
    for moment in moments:
        for worker in moment.workers:
            if worker.pid == pid:
                yield moment.at_s, moment.span_s, _work(worker.main), _args(worker.main)


def _work(thread: Thread) -> str:
    work = work_of(thread.stack)
    if work is WorkerActivity.IDLE or (not thread.stack and thread.call is KernelCall.WAIT):
        return "idle"
    return _CALLS.get(thread.call, str(work))


def _args(thread: Thread) -> dict[str, str]:
    frame = innermost_own(thread.stack)
    where = f"{frame.name} {frame.file}:{frame.line}" if frame else ""
    return {name: text for name, text in (("path", thread.path), ("where", where)) if text}


def _slices(intervals: Iterable[_Interval], pid: int) -> Iterator[dict[str, Any]]:
    """Merge consecutive intervals with the same name to a slice with the arguments of the first."""
    current: dict[str, Any] | None = None
    for at_s, span_s, name, args in intervals:
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
    previous = -1
    for moment in moments:
        idle = sum(_work(worker.main) == "idle" for worker in moment.workers)
        if moment.workers and idle != previous:
            previous = idle
            yield {
                "ph": "C", "name": "idle workers", "pid": trainer, "tid": trainer,
                "ts": round(moment.at_s * 1e6), "args": {"idle": idle},
            }  # fmt: skip
