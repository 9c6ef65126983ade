"""From a recording to causes: pure, so that every rule can be tried on a few moments written by hand.

Each moment of a trainer is blamed on causes that add up to it. While it waits for data, its workers tell why: the wait
is dealt to what those did in just that moment. Time in the trainer's own step is compute, whatever the step does; only
how it computes (on one core, in tiny steps, waiting for the interpreter's lock) may be blamed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from headrace.diagnose.causes import Cause, gain_of
from headrace.diagnose.evidence import evidence_of
from headrace.diagnose.frames import (
    TrainerPhase,
    WorkerActivity,
    asks_headrace,
    in_torch,
    innermost_own,
    phase_of,
    polls,
    waits,
    work_of,
)
from headrace.diagnose.recording import (
    FileSystemUsage,
    KernelCall,
    Recording,
    Storage,
    Thread,
    TimelineSample,
    Worker,
)

HEALTHY_BELOW = 0.10
"""Of the time lost to all causes together."""
SHOWN_FROM = 0.02
GPU_BUSY_FROM = 0.8
IDLE_FROM = 0.5  # of the workers; fewer are a matter of chance
OVERHEAD_FROM = 0.10  # of the time on one core, spent in the optimizer's Python
SHORT_STEP_S = 0.02
UNRELATED_FROM = 0.35
"""Of the changes that looks with nothing to do with each other would show. Steps too short to follow show 0.63 of them,
give or take 0.1 in two seconds: Python stacks are taken at random moments, as often as looks on average, so that one
pair of looks in e has no new stack between them."""
SPARE_CORES_FROM = 0.75

_LOADER = (TrainerPhase.LOADER_START, TrainerPhase.FETCH, TrainerPhase.UNPACK, TrainerPhase.WAIT_DATA)
_TRAINING = (
    *_LOADER,
    TrainerPhase.FORWARD,
    TrainerPhase.BACKWARD,
    TrainerPhase.OPTIMIZER,
    TrainerPhase.COPY,
    TrainerPhase.CHECKPOINT,
)
_ASKS = (TrainerPhase.FETCH, TrainerPhase.UNPACK, TrainerPhase.WAIT_DATA)
_STEP = (*_ASKS, TrainerPhase.FORWARD, TrainerPhase.BACKWARD, TrainerPhase.OPTIMIZER, TrainerPhase.CHECKPOINT)
"""None is seen before the first batch is asked for. A step may show none of them, so that a first one proves that
steps began at it or before it."""
_SETUP = (TrainerPhase.LOADER_START, TrainerPhase.IMPORT)
SETUP_GAP = 10
"""Looks between two of _SETUP that still are no step, at least: as many as the setup took until then."""
_FILES = (KernelCall.READ, KernelCall.OPEN, KernelCall.FAULT, KernelCall.WRITE)
_ANSWERS = (KernelCall.SOCKET, KernelCall.WAIT, KernelCall.LOCK)
_UNSETTLED = "one core"
_RIVALS = "rivals"
"""Other Python threads are ready to run when the trainer's is: one of them has the interpreter's lock, unless they are
in code that needs none."""
RIVALS_FROM = 0.1
"""Of the time with rivals, seen asleep for the lock; where the trainer is not, they do no harm."""


@dataclass(slots=True)
class Blame:
    """What was blamed on a cause. details: what was seen, with the seconds of it."""

    seconds: float = 0.0
    details: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, seconds: float, details: Iterable[tuple[str, str]]) -> None:
        self.seconds += seconds
        for one in details:
            self.details[one] += seconds

    def join(self, other: Blame) -> None:
        self.seconds += other.seconds
        for one, seconds in other.details.items():
            self.details[one] += seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """gain: the speed-up to expect of the remedy."""

    cause: Cause
    share: float
    seconds: float
    gain: float
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """wall_s: of all trainers together. steps_share: of the time spent in steps that nothing is said against. causes:
    the largest first, from SHOWN_FROM on."""

    wall_s: float
    before_s: float
    steps_share: float
    healthy: bool
    causes: tuple[Finding, ...]
    recording: Recording


def attribute(recording: Recording) -> Diagnosis:
    """recording: as the sampler made it; what came before the first batch was asked for is left out."""
    moments, before_s = training_part(recording)
    trained = replace(recording, moments=moments)
    wall_s = sum(one.span_s for one in moments)
    blames = _settled(_blames(trained), trained)
    found = [
        Finding(
            cause=cause,
            share=blame.seconds / wall_s,
            seconds=blame.seconds,
            gain=gain_of(cause, blame.seconds / wall_s, trained),
            evidence=evidence_of(cause, blame.details, blame.seconds, trained),
        )
        for cause, blame in blames.items()
        if blame.seconds > 0
    ]
    found.sort(key=lambda one: -one.share)
    lost = sum(one.share for one in found)
    return Diagnosis(
        wall_s=wall_s,
        before_s=before_s,
        steps_share=max(0.0, 1 - lost) if wall_s else 0.0,
        healthy=bool(moments) and lost < HEALTHY_BELOW,
        causes=tuple(one for one in found if one.share >= SHOWN_FROM),
        recording=trained,
    )


def training_part(recording: Recording) -> tuple[tuple[TimelineSample, ...], float]:
    """Without what came before, and the seconds of that, of the trainer that took longest. Of a job whose imports were
    seen: from its first step on, as benchmarks leave out the first batch, too; imports, the building of a model and the
    start of an accelerator may follow the start of the loader. Else from the first sight of a loader on. Of a job that
    ended, without what came after its last batch: an interpreter takes its time to end."""
    kept: list[TimelineSample] = []
    before_s = 0.0
    for trainer in sorted({one.trainer for one in recording.moments}):
        moments = [one for one in recording.moments if one.trainer == trainer]
        first, end = _training(moments, ended=recording.ended)
        kept += moments[first:end]
        before_s = max(before_s, sum(one.span_s for one in moments[:first]))
    return tuple(kept), before_s


def _training(moments: list[TimelineSample], *, ended: bool) -> tuple[int, int]:
    """Of one trainer, as a range."""
    phases = [phase_of(one.main.stack) for one in moments]
    seen = [at for at, one in enumerate(phases) if one in _LOADER or moments[at].workers]
    if seen:
        first, last = seen[0], max(at for at, one in enumerate(phases) if one in _TRAINING or at == seen[-1])
        step = _first_step(moments, phases, first, last)
        if TrainerPhase.IMPORT in phases[:step]:
            first = next((at for at in range(step, last) if phases[at] not in (*_LOADER, None)), step)
    else:
        known = [at for at, one in enumerate(phases) if one not in (None, TrainerPhase.IMPORT)]
        first, last = (known[0], known[-1]) if known else (0, len(moments))
    return first, last + 1 if ended else len(moments)


def _first_step(
    moments: list[TimelineSample], phases: list[TrainerPhase | None], start: int, last: int
) -> int:
    """Return where steps begin, the wait for the first batch among them. start: the first sight of a loader. Code of
    the script's own is a step where its line is seen again after the first sure sign of steps; else it is setup."""
    sign = next((at for at in range(start, last + 1) if phases[at] in _STEP or moments[at].marked), None)
    if sign is None:
        return _end_of_setup(phases, start)
    repeated = {_line(one.main) for one in moments[sign + 1 :]}
    own = (TrainerPhase.OWN, TrainerPhase.COPY)
    steps = (at for at in range(start, sign) if phases[at] in own and _line(moments[at].main) in repeated)
    return next(steps, sign)


def _end_of_setup(phases: list[TrainerPhase | None], start: int) -> int:
    """Return where imports and the start of workers end, for a job of which no phase of a step is known."""
    end = start
    for at in range(start, len(phases)):
        if at - end > max(SETUP_GAP, end - start):
            break
        if phases[at] in _SETUP:
            end = at + 1
    return min(end, len(phases) - 1)


def trainer_does(moment: TimelineSample) -> TrainerPhase:
    """The phase of a moment; where no stack is known, by what the kernel says alone."""
    phase = phase_of(moment.main.stack)
    if phase in (TrainerPhase.OWN, TrainerPhase.COPY, TrainerPhase.IMPORT) and moment.marked:
        return TrainerPhase.FORWARD
    if phase is not None:
        return phase
    if moment.marked:
        return TrainerPhase.FORWARD
    return (
        TrainerPhase.WAIT_DATA if moment.workers and moment.main.call is KernelCall.WAIT else TrainerPhase.OWN
    )


def _blames(recording: Recording) -> dict[str, Blame]:
    """By cause; and `_UNSETTLED`, the time on one core, which needs a look at the whole."""
    ledger: dict[str, Blame] = {}
    places = Places(recording.places)
    for moment in recording.moments:
        for cause, part, details in _blamed(moment, recording, places):
            ledger.setdefault(cause, Blame()).add(moment.span_s * part, details)
    return ledger


Blamed = tuple[str, float, tuple[tuple[str, str], ...]]
"""A cause, the part of the moment, and details: pairs of what kind of detail and its text."""


def _blamed(moment: TimelineSample, recording: Recording, places: Places) -> Iterator[Blamed]:
    phase = trainer_does(moment)
    where = (("line", _line(moment.main)),)
    if phase is TrainerPhase.CHECKPOINT:
        yield Cause.CHECKPOINT, 1.0, (*where, ("call", moment.main.call), ("file", moment.main.path))
    elif phase is TrainerPhase.LOADER_START:
        yield Cause.RESTARTS, 1.0, where
    elif phase is TrainerPhase.COPY:
        if not _gpu_is_busy(moment):  # a copy also waits for what the GPU was given before
            yield Cause.COPIES, 1.0, where
    elif phase in (TrainerPhase.UNPACK, TrainerPhase.WAIT_DATA):
        yield from _waiting(moment, recording, places)
    elif phase is TrainerPhase.FETCH or moment.main.call in _FILES:
        yield from _fetching(moment.main, 1.0, places, in_main=True)
    else:
        yield from _computing(moment, phase, recording)


def _waiting(moment: TimelineSample, recording: Recording, places: Places) -> Iterator[Blamed]:
    """The trainer's main thread asks its loader, and does nothing else. While it takes a batch apart it waits as well:
    tensors are fetched from the worker, which has to have a moment for it."""
    if moment.main.call is KernelCall.RUN and not polls(moment.main.stack):
        yield Cause.HAND_OVER, 1.0, (("line", _line(moment.main)),)
        return
    if not moment.workers:
        yield Cause.UNKNOWN, 1.0, ()
        return
    busy = [one for one in moment.workers if not _idle(one)]
    idle = len(moment.workers) - len(busy)
    if not busy:
        packing = [one for one in (*moment.others, *_others(moment.workers)) if one.call is KernelCall.RUN]
        lines = tuple(("line", _line(one)) for one in packing if one.stack)
        yield (Cause.HAND_OVER if packing else Cause.STARVED), 1.0, (*lines, ("idle", "all"))
        return
    left = 1.0
    if len(moment.workers) > 1 and idle / len(moment.workers) >= IDLE_FROM:
        part = idle / len(moment.workers)
        left -= part
        yield Cause.STARVED, part, (("idle", f"{idle} of {len(moment.workers)}"),)
    for worker in busy:
        yield from _fetching(_telling(worker), left / len(busy), places, in_main=False)


def _fetching(thread: Thread, part: float, places: Places, *, in_main: bool) -> Iterator[Blamed]:
    """A thread that prepares samples. On a processor that is settled in the end: too few workers, or too few cores."""
    line = ("line", _line(thread))
    work = work_of(thread.stack)
    if thread.call in _FILES or (thread.call in _ANSWERS and asks_headrace(thread.stack)):
        yield from places.blamed(thread, part)
    elif thread.call is KernelCall.SOCKET or (
        work is WorkerActivity.NETWORK and thread.call is not KernelCall.RUN
    ):
        yield Cause.DIRECT, part, (line,)
    elif in_main:
        yield Cause.IN_MAIN, part, (("work", work), line)
    elif work is WorkerActivity.PACK:
        yield Cause.HAND_OVER, part, (line,)
    elif thread.call is KernelCall.RUN or (
        thread.call is KernelCall.UNKNOWN and work is not WorkerActivity.OWN
    ):
        yield Cause.PROCESSOR, part, (("work", work), line)
    else:
        yield Cause.BLOCKED, part, (("call", thread.call), line)


def _computing(moment: TimelineSample, phase: TrainerPhase, recording: Recording) -> Iterator[Blamed]:
    main = moment.main
    if _gpu_is_busy(moment):
        return
    if main.call is KernelCall.LOCK and main.stack and not waits(main.stack):
        others = [one for one in moment.others if one.call is KernelCall.RUN and one.stack]
        if others:
            yield Cause.LOCK, 1.0, (("line", _line(main)), *(("holder", _line(one)) for one in others))
        return
    if main.call is not KernelCall.RUN or (main.stack and waits(main.stack)):
        return  # it waits for the accelerator, or for whatever stands in for one, or was woken just now
    rivals = [
        one for one in moment.others if one.call is KernelCall.RUN and one.stack and not waits(one.stack)
    ]
    if rivals:
        part = len(rivals) / (len(rivals) + 1)
        yield _RIVALS, part, (("line", _line(main)), *(("holder", _line(one)) for one in rivals))
    if moment.running > 1 or recording.cores == 1:
        return
    kind = "overhead" if phase is TrainerPhase.OPTIMIZER or in_torch(main.stack) else "work"
    yield _UNSETTLED, 1.0, (("kind", kind), ("phase", phase.name.lower()), ("line", _line(main)))


def _gpu_is_busy(moment: TimelineSample) -> bool:
    return moment.gpu_busy is not None and moment.gpu_busy >= GPU_BUSY_FROM


def _settled(ledger: dict[str, Blame], recording: Recording) -> dict[Cause, Blame]:
    """What only the whole can say."""
    alone = ledger.pop(_UNSETTLED, None)
    if alone is not None:
        small = _steps_are_small(alone, recording)
        ledger[Cause.SMALL_BATCHES if small else Cause.UNPARALLEL] = alone
    rivals, locked = ledger.pop(_RIVALS, None), ledger.get(Cause.LOCK)
    if rivals is not None and locked is not None and locked.seconds >= RIVALS_FROM * rivals.seconds:
        locked.join(rivals)
    busy = ledger.get(Cause.PROCESSOR)
    if busy is not None and _spare_cores(recording) >= SPARE_CORES_FROM:
        ledger[Cause.TOO_FEW] = ledger.pop(Cause.PROCESSOR)
    return {Cause(cause): blame for cause, blame in ledger.items()}


def _steps_are_small(alone: Blame, recording: Recording) -> bool:
    """Much of the time on one core goes to torch's own Python, and steps are shorter than looks can follow: what a
    moment shows says little of the next one."""
    overhead = alone.details[("kind", "overhead")] / max(1e-9, alone.seconds)
    if overhead < OVERHEAD_FROM:
        return False
    if recording.steps:
        wall_s = sum(one.span_s for one in recording.moments)
        return wall_s / recording.steps < SHORT_STEP_S
    phases = [phase_of(one.main.stack) for one in recording.moments]
    changes = sum(one is not other for one, other in pairwise(phases)) / len(phases)
    alike = sum((count / len(phases)) ** 2 for count in Counter(phases).values())
    return changes > UNRELATED_FROM * (1 - alike)


def _spare_cores(recording: Recording) -> float:
    """Cores that neither workers nor trainer used, on average."""
    waited = [one for one in recording.moments if one.workers]
    if not waited:
        return 0.0
    workers = sum(len(one.workers) for one in waited) / len(waited)
    computing = sum(one.running for one in waited if one.main.call is KernelCall.RUN) / len(waited)
    return recording.cores - workers - computing


class Places:
    """Which cause a wait for a file is, by where the file lies."""

    def __init__(self, places: tuple[FileSystemUsage, ...]) -> None:
        self._places = sorted(places, key=lambda one: -len(one.mountpoint))

    def of(self, path: str) -> FileSystemUsage | None:
        """The longest mountpoint above it; of a page fault, whose file isn't told, None."""
        for one in self._places:
            if path == one.mountpoint or path.startswith(one.mountpoint.rstrip("/") + "/"):
                return one
        return None

    def node(self) -> FileSystemUsage | None:
        """What Headrace's library asks."""
        return next((one for one in self._places if one.storage is Storage.HEADRACE), None)

    def blamed(self, thread: Thread, part: float) -> Iterator[Blamed]:
        place = self.of(thread.path) if thread.call in _FILES else self.node()
        file = thread.path or ("a mapped file" if thread.call in _FILES else "")
        details = [("file", file), ("call", thread.call), ("line", _line(thread))]
        if place is not None:
            details.append(("place", place.mountpoint))
        if place is not None and place.storage is Storage.HEADRACE:
            for cause, weight in _sources(place):
                yield cause, part * weight, tuple(details)
        elif thread.call in _ANSWERS:
            yield Cause.ORIGIN, part, tuple(details)  # its node could not be asked
        elif thread.call is KernelCall.OPEN:
            yield Cause.METADATA, part, tuple(details)
        elif place is not None and place.storage is Storage.SHARE:
            yield Cause.SHARE, part, tuple(details)
        else:
            yield Cause.DISK, part, tuple(details)


def _sources(place: FileSystemUsage) -> list[tuple[Cause, float]]:
    """Of a wait in a Headrace mount: origin and peers by the bytes that came from them, the disk when none did."""
    whole = place.origin_bytes + place.peer_bytes
    if whole == 0:
        return [(Cause.ORIGIN if place.origin_requests else Cause.DISK, 1.0)]
    parts = ((Cause.ORIGIN, place.origin_bytes / whole), (Cause.PEER, place.peer_bytes / whole))
    return [(cause, weight) for cause, weight in parts if weight > 0]


def _idle(worker: Worker) -> bool:
    """It has no order; or nothing but a wait is known of it."""
    if worker.main.stack:
        return work_of(worker.main.stack) is WorkerActivity.IDLE
    return worker.main.call in (KernelCall.WAIT, KernelCall.UNKNOWN)


def _telling(worker: Worker) -> Thread:
    """The thread to judge a worker by: its main one, or one that reads for it while that waits."""
    if worker.main.call in (KernelCall.LOCK, KernelCall.WAIT):
        for one in worker.others:
            if one.call in _FILES and one.path:
                return Thread(one.call, worker.main.stack, one.path)
    return worker.main


def _others(workers: Iterable[Worker]) -> Iterator[Thread]:
    for one in workers:
        yield from one.others


def _line(thread: Thread) -> str:
    frame = innermost_own(thread.stack)
    return f"{frame.name} ({frame.file}:{frame.line})" if frame is not None else ""
