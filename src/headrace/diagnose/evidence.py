"""What was seen of a cause, in sentences a user can check."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

from headrace.config.sizes import show_size
from headrace.diagnose.causes import Cause
from headrace.diagnose.recording import FileSystemUsage, Recording, Storage

LINES_MAX = 3
BUSY_FROM = 0.5
"""Of a disk; below, it is not the disk itself that is at its end."""
_CALLS = {
    "run": "on a processor",
    "read": "in reads",
    "open": "in opens and looks at files",
    "write": "in writes and syncs",
    "fault": "for pages of mapped files",
    "socket": "for a socket",
    "wait": "for an event",
    "lock": "for a lock",
    "sleep": "asleep",
}

Details = Mapping[tuple[str, str], float]


def evidence_of(cause: Cause, details: Details, seconds: float, recording: Recording) -> tuple[str, ...]:
    """details: seconds by kind and text. The strongest first."""
    return (
        *_places(cause, details, seconds, recording),
        *_workers(cause, details, seconds, recording),
        *_loader(cause, recording),
        *_kinds(details, seconds),
        *_files(details, seconds),
        *_lines(details, seconds),
    )


def _places(cause: Cause, details: Details, seconds: float, recording: Recording) -> Iterator[str]:
    wall_s = recording.watched_s or 1.0
    for name, part in _largest(details, "place", seconds):
        for place in recording.places:
            if place.mountpoint == name:
                yield f"{part:.0%} of it below {name} ({place.kind}, {place.source})"
                yield from _speeds(cause, place, wall_s, recording)


def _speeds(cause: Cause, place: FileSystemUsage, wall_s: float, recording: Recording) -> Iterator[str]:
    link = f"; the link can do {_rate(recording.link_bytes_s)}" if recording.link_bytes_s else ""
    if cause is Cause.ORIGIN:
        each = 1000 * place.origin_latency_s / max(1, place.origin_requests)
        yield (
            f"the origin gave {_rate(place.origin_bytes / wall_s)} in {place.origin_requests} reads, "
            f"{each:.0f} ms each{link}"
        )
    elif cause is Cause.PEER:
        yield f"other nodes gave {_rate(place.peer_bytes / wall_s)} in {place.peer_reads} reads{link}"
    elif place.busy is not None:
        why = "" if place.busy >= BUSY_FROM else ": a quota above it, or one small read at a time"
        yield f"the disk gave {_rate(place.bytes_read / wall_s)} and was busy {place.busy:.0%} of the time{why}"
    elif place.storage is Storage.SHARE:
        yield f"the job read {_rate(recording.bytes_read / wall_s)} in all{link}"


def _workers(cause: Cause, details: Details, seconds: float, recording: Recording) -> Iterator[str]:
    count = max((len(one.workers) for one in recording.moments), default=0)
    for text, part in _largest(details, "idle", seconds)[:1]:
        yield f"{text} workers idle in {part:.0%} of it"
    if cause in (Cause.TOO_FEW, Cause.PROCESSOR):
        yield f"{count} workers, all at work while the trainer waited; {recording.cores} cores"
    if cause is Cause.RESTARTS:
        pids = {worker.pid for one in recording.moments for worker in one.workers}
        yield f"{len(pids)} worker processes were seen, {count} at one time"
    if cause in (Cause.UNPARALLEL, Cause.SMALL_BATCHES):
        yield f"one thread ran, of {recording.cores} cores"
    if cause is Cause.SMALL_BATCHES and recording.steps:
        wall_s = sum(one.span_s for one in recording.moments)
        each = 1000 * wall_s / recording.steps
        samples = f", {recording.samples / recording.steps:.0f} samples each" if recording.samples else ""
        yield f"{recording.steps} steps of {each:.1f} ms{samples}"


def _loader(cause: Cause, recording: Recording) -> Iterator[str]:
    loader = recording.loader
    if loader is None:
        return
    if cause is Cause.STARVED:
        yield f"num_workers={loader.workers}, prefetch_factor={loader.prefetch}"
    if cause is Cause.RESTARTS:
        yield f"persistent_workers={loader.persistent}"
    if cause is Cause.COPIES:
        yield f"pin_memory={loader.pinned}"
    if cause in (Cause.TOO_FEW, Cause.IN_MAIN):
        yield f"num_workers={loader.workers}"
    if cause is Cause.SMALL_BATCHES:
        yield f"batch_size={loader.batch}"


def _kinds(details: Details, seconds: float) -> Iterator[str]:
    works = _largest(details, "work", seconds)
    if works:
        yield ", ".join(f"{part:.0%} {text}" for text, part in works)
    phases = _largest(details, "phase", seconds)
    if phases:
        yield ", ".join(f"{part:.0%} {text}" for text, part in phases)
    calls = [(_CALLS[text], part) for text, part in _largest(details, "call", seconds) if text in _CALLS]
    if calls:
        yield ", ".join(f"{part:.0%} {text}" for text, part in calls)


def _files(details: Details, seconds: float) -> Iterator[str]:
    """Single files when there are few, else their folders."""
    files = {text: spent for (kind, text), spent in details.items() if kind == "file" and text}
    if not files:
        return
    folders: defaultdict[str, float] = defaultdict(float)
    for text, spent in files.items():
        folders[text if len(files) <= LINES_MAX else os.path.dirname(text) or text] += spent
    for text, spent in sorted(folders.items(), key=lambda one: -one[1])[:LINES_MAX]:
        yield f"{spent / max(seconds, 1e-9):.0%} at {text}"


def _lines(details: Details, seconds: float) -> Iterator[str]:
    for kind, word in (("line", "in"), ("holder", "the lock is held by")):
        for text, part in _largest(details, kind, seconds):
            if text:
                yield f"{part:.0%} {word} {text}"


def _largest(details: Details, kind: str, seconds: float) -> list[tuple[str, float]]:
    found = [(text, spent / max(seconds, 1e-9)) for (one, text), spent in details.items() if one == kind]
    found.sort(key=lambda one: -one[1])
    return [(text, part) for text, part in found[:LINES_MAX] if part >= 0.05]


def _rate(bytes_s: float) -> str:
    return f"{show_size(int(bytes_s))}/s"
