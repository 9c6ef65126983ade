"""Describe the observations behind a cause in sentences that a user can verify."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping

from headrace.base.sizes import show_size
from headrace.diagnose.causes import Cause
from headrace.diagnose.recording import FileSystemUsage, PlanUsage, Recording, Storage

LINES_MAX = 3
BUSY_FROM = 0.5
"""Share of the time; a disk that is busy for less is not the limit itself."""
_CALLS = {
    "run": "on a processor",
    "read": "in reads",
    "open": "in opens and stats of files",
    "write": "in writes and syncs",
    "fault": "in page faults of mapped files",
    "socket": "waiting for a socket",
    "wait": "waiting for an event",
    "lock": "waiting for a lock",
    "sleep": "asleep",
}

Details = Mapping[tuple[str, str], float]


def evidence_of(cause: Cause, details: Details, seconds: float, recording: Recording) -> tuple[str, ...]:
    """Return sentences, the strongest first. details: seconds by (kind, text)."""
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
                if cause in (Cause.ORIGIN, Cause.PEER) and place.plan is not None:
                    yield from _plans(place.plan)


def _speeds(cause: Cause, place: FileSystemUsage, wall_s: float, recording: Recording) -> Iterator[str]:
    link = f"; the link speed is {_rate(recording.link_bytes_s)}" if recording.link_bytes_s else ""
    if cause is Cause.ORIGIN:
        each = 1000 * place.origin_latency_s / max(1, place.origin_requests)
        yield (
            f"the origin delivered {_rate(place.origin_bytes / wall_s)} in {place.origin_requests} reads, "
            f"{each:.0f} ms each{link}"
        )
    elif cause is Cause.PEER:
        yield f"other nodes delivered {_rate(place.peer_bytes / wall_s)} in {place.peer_reads} reads{link}"
    elif place.busy is not None:
        why = "" if place.busy >= BUSY_FROM else ", so a quota or single small reads limit it"
        yield f"the disk delivered {_rate(place.bytes_read / wall_s)} and was busy {place.busy:.0%} of the time{why}"
    elif place.storage is Storage.SHARE:
        yield f"the job read {_rate(recording.bytes_read / wall_s)} in total{link}"


def _plans(plan: PlanUsage) -> Iterator[str]:
    """Yield why the files were not in the cache before the job read them."""
    if not plan.streams:
        yield "no job of this node has a plan: it needs `headrace run`, and a loader whose order is known"
        if plan.predicted:
            opened = f"{plan.predicted_right} of them were opened"
            yield f"{plan.predicted} files were predicted without a plan, and {opened}"
    elif plan.unreliable:
        yield f"the plan of {plan.unreliable} of {plan.streams} loaders is unreliable: samples opened other files"
    elif plan.learning:
        yield f"the plan of {plan.learning} of {plan.streams} loaders is learned in their first epoch"
    elif plan.needed_bytes_s > plan.fetched_bytes_s:
        needed, fetched = _rate(plan.needed_bytes_s), _rate(plan.fetched_bytes_s)
        yield f"the plans need {needed}, and the node fetched {fetched} ahead"


def _workers(cause: Cause, details: Details, seconds: float, recording: Recording) -> Iterator[str]:
    count = max((len(moment.workers) for moment in recording.moments), default=0)
    for text, part in _largest(details, "idle", seconds)[:1]:
        yield f"{text} workers are idle in {part:.0%} of it"
    if cause in (Cause.TOO_FEW, Cause.PROCESSOR):
        yield f"{count} workers, all busy while the trainer waited; {recording.cores} cores"
    if cause is Cause.RESTARTS:
        pids = {worker.pid for moment in recording.moments for worker in moment.workers}
        yield f"{len(pids)} worker processes ran, at most {count} at a time"
    if cause in (Cause.UNPARALLEL, Cause.SMALL_BATCHES):
        yield f"one thread ran on {recording.cores} cores"
    if cause is Cause.SMALL_BATCHES and recording.steps:
        wall_s = sum(moment.span_s for moment in recording.moments)
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
    """Yield the files if there are few, else their directories."""
    files = {text: seconds_at for (kind, text), seconds_at in details.items() if kind == "file" and text}
    if not files:
        return
    directories: defaultdict[str, float] = defaultdict(float)
    for text, seconds_at in files.items():
        directories[text if len(files) <= LINES_MAX else os.path.dirname(text) or text] += seconds_at
    for text, seconds_at in sorted(directories.items(), key=lambda item: -item[1])[:LINES_MAX]:
        yield f"{seconds_at / max(seconds, 1e-9):.0%} at {text}"


def _lines(details: Details, seconds: float) -> Iterator[str]:
    for kind, preposition in (("line", "in"), ("holder", "with the lock held by")):
        for text, part in _largest(details, kind, seconds):
            if text:
                yield f"{part:.0%} {preposition} {text}"


def _largest(details: Details, kind: str, seconds: float) -> list[tuple[str, float]]:
    total_s = max(seconds, 1e-9)
    shares = [(text, spent_s / total_s) for (its_kind, text), spent_s in details.items() if its_kind == kind]
    shares.sort(key=lambda item: -item[1])
    return [(text, part) for text, part in shares[:LINES_MAX] if part >= 0.05]


def _rate(bytes_s: float) -> str:
    return f"{show_size(int(bytes_s))}/s"
