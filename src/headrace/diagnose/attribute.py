"""Attribute the time of a recording to causes, as pure functions, so that tests need only a few written moments.

The causes of each moment of a trainer add up to that moment. While the trainer waits for data, its workers show why:
the wait is divided by what they did in the same moment. Time in the trainer's own step is compute, whatever the step
does. Only how it computes may be a cause: on one core, in tiny steps, waiting for the interpreter's lock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from headrace.base.namespace_path import is_at_or_below
from headrace.diagnose.causes import Cause, gain_of
from headrace.diagnose.evidence import evidence_of
from headrace.diagnose.frames import (
    TrainerPhase,
    WorkerActivity,
    calls_headrace,
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
"""Share of the time that all causes together may take from a healthy job."""
SHOWN_FROM = 0.02
GPU_BUSY_FROM = 0.8
IDLE_FROM = 0.5  # share of the workers; fewer may be idle by chance
OVERHEAD_FROM = 0.10  # share of the time on one core that is spent in the optimizer's Python
SHORT_STEP_S = 0.02
UNRELATED_FROM = 0.35
"""Share of the phase changes that unrelated samples would show. Steps too short to follow show 0.63 of them, within 0.1
for two seconds: Python stacks are taken at random moments, on average as often as samples. So one of e pairs of samples
has no new stack between them."""
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
_DATA_PHASES = (TrainerPhase.FETCH, TrainerPhase.UNPACK, TrainerPhase.WAIT_DATA)
_STEP = (
    *_DATA_PHASES,
    TrainerPhase.FORWARD,
    TrainerPhase.BACKWARD,
    TrainerPhase.OPTIMIZER,
    TrainerPhase.CHECKPOINT,
)
"""Phases that never occur before the first batch is requested. A step may show none of them, so steps began at the
first of them or earlier."""
_SETUP = (TrainerPhase.LOADER_START, TrainerPhase.IMPORT)
SETUP_GAP = 10
"""Samples between two _SETUP phases that still count as setup; or as many as the setup took so far, if more."""
_FILES = (KernelCall.READ, KernelCall.OPEN, KernelCall.FAULT, KernelCall.WRITE)
_ANSWERS = (KernelCall.SOCKET, KernelCall.WAIT, KernelCall.LOCK)
_PAUSES = (KernelCall.SLEEP, KernelCall.WAIT)
_UNSETTLED = "one core"
_RIVALS = "rivals"
"""Other Python threads are ready to run together with the trainer's. One of them has the interpreter's lock, unless
their code needs none."""
RIVALS_FROM = 0.1
"""Share of the time with rivals in which the trainer must sleep for the lock; below it, rivals do no harm."""


@dataclass(slots=True)
class Blame:
    """Sum up the time attributed to a cause. details: observations, with their seconds."""

    seconds: float = 0.0
    details: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def add(self, seconds: float, details: Iterable[tuple[str, str]]) -> None:
        self.seconds += seconds
        for detail in details:
            self.details[detail] += seconds

    def join(self, other: Blame) -> None:
        self.seconds += other.seconds
        for detail, seconds in other.details.items():
            self.details[detail] += seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """Describe a cause that was found. gain: the speed-up to expect of the remedy."""

    cause: Cause
    share: float
    seconds: float
    gain: float
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Hold the result of a diagnosis.

    wall_s: sum over all trainers. steps_share: share of the time in steps without a cause against them. causes: from
    SHOWN_FROM on, the largest first.
    """

    wall_s: float
    before_s: float
    steps_share: float
    healthy: bool
    causes: tuple[Finding, ...]
    recording: Recording


def attribute(recording: Recording) -> Diagnosis:
    """Return the diagnosis of a sampler's recording; moments before the first batch is requested do not count."""
    moments, before_s = training_part(recording)
    trained = replace(recording, moments=moments)
    wall_s = sum(moment.span_s for moment in moments)
    blames = _settled(_blames(trained), trained)
    findings = [
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
    findings.sort(key=lambda finding: -finding.share)
    lost_share = sum(finding.share for finding in findings)
    return Diagnosis(
        wall_s=wall_s,
        before_s=before_s,
        steps_share=max(0.0, 1 - lost_share) if wall_s else 0.0,
        healthy=bool(moments) and lost_share < HEALTHY_BELOW,
        causes=tuple(finding for finding in findings if finding.share >= SHOWN_FROM),
        recording=trained,
    )


def training_part(recording: Recording) -> tuple[tuple[TimelineSample, ...], float]:
    """Return the moments of training, and the seconds before it of the trainer that took longest.

    If the recording shows the job's imports, training begins with the first step. Imports, the building of a model and
    the start of an accelerator may follow the start of the loader. Benchmarks leave out the first batch, too.
    Otherwise it begins with the first moment that shows a loader. If the job ended, training ends with its last batch,
    since an interpreter needs time to exit. A trainer without a sign of a step has no moment of training.
    """
    training_moments: list[TimelineSample] = []
    before_s = 0.0
    for trainer in sorted({moment.trainer for moment in recording.moments}):
        moments = [moment for moment in recording.moments if moment.trainer == trainer]
        first, end = _training(moments, ended=recording.ended)
        training_moments += moments[first:end]
        before_s = max(before_s, sum(moment.span_s for moment in moments[:first]))
    return tuple(training_moments), before_s


def _training(moments: list[TimelineSample], *, ended: bool) -> tuple[int, int]:
    """Return the range of training moments of one trainer; an empty one if no step was seen."""
    phases = [phase_of(moment.main.stack) for moment in moments]
    in_loader = [index for index, phase in enumerate(phases) if phase in _LOADER or moments[index].workers]
    working = [index for index, phase in enumerate(phases) if phase not in (None, TrainerPhase.IMPORT)]
    if not in_loader and not working:
        return len(moments) if TrainerPhase.IMPORT in phases else 0, len(moments)
    first, last = (in_loader[0], in_loader[-1]) if in_loader else (working[0], working[-1])
    last = max(index for index, phase in enumerate(phases) if phase in _TRAINING or index == last)
    step = _first_step(moments, phases, first, last, has_loader=bool(in_loader))
    if step is None:
        return len(moments), len(moments)
    if TrainerPhase.IMPORT in phases[:step]:
        first = next((index for index in range(step, last) if phases[index] not in (*_LOADER, None)), step)
    return first, last + 1 if ended else len(moments)


def _first_step(
    moments: list[TimelineSample],
    phases: list[TrainerPhase | None],
    start: int,
    last: int,
    *,
    has_loader: bool,
) -> int | None:
    """Return the index of the first step, which includes the wait for the first batch; None if no step was seen. start:
    the first loader phase, or of a job without one the first moment that is no import.

    A line of the script's own code belongs to a step if it occurs again after the first certain phase of a step.
    Otherwise it is setup.
    """
    first_certain = next(
        (index for index in range(start, last + 1) if phases[index] in _STEP or moments[index].marked), None
    )
    if first_certain is None:
        end = _end_of_setup(phases, start)
        is_step = end < len(moments) if has_loader else _shows_steps(moments, phases, end)
        return end if is_step else None
    repeated = {_line(moment.main) for moment in moments[first_certain + 1 :]}
    own = (TrainerPhase.OWN, TrainerPhase.COPY)
    steps = (
        index
        for index in range(start, first_certain)
        if phases[index] in own and _line(moments[index].main) in repeated
    )
    return next(steps, first_certain)


def _end_of_setup(phases: list[TrainerPhase | None], start: int) -> int:
    """Return where imports and the start of workers end, for a job without a recognized phase of a step."""
    end = start
    for index in range(start, len(phases)):
        if index - end > max(SETUP_GAP, end - start):
            break
        if phases[index] in _SETUP:
            end = index + 1
    return end


def _shows_steps(moments: list[TimelineSample], phases: list[TrainerPhase | None], start: int) -> bool:
    """Return whether the code of a script with a loader of its own, or none, trains from here on.

    It keeps a GPU busy, or repeats itself. Setup has loops, too, so after imports they count once they took longer than
    all before. One long wait, such as a sleep, is no step. One long computation is none after imports.
    """
    rest = moments[start:]
    if any(map(_gpu_is_busy, rest)):
        return True
    if TrainerPhase.IMPORT in phases:
        if len(rest) <= start:
            return False
    elif 2 * sum(moment.main.call in _PAUSES for moment in rest) < len(rest):
        return True
    stacks = [moment.main.stack for moment in rest if moment.main.stack]
    changes = [stack for stack, following in pairwise([*stacks, ()]) if stack != following]
    return len(set(changes)) < len(changes)


def phase_at(moment: TimelineSample) -> TrainerPhase:
    """Return the phase of a moment; without a stack, the kernel's data decide."""
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
    """Return the time by cause; `_UNSETTLED` is the time on one core, which only the complete recording can
    attribute."""
    blames: dict[str, Blame] = {}
    places = Places(recording.places)
    for moment in recording.moments:
        for cause, share, details in _blamed(moment, recording, places):
            blames.setdefault(cause, Blame()).add(moment.span_s * share, details)
    return blames


Blamed = tuple[str, float, tuple[tuple[str, str], ...]]
"""A cause, its share of the moment, and details: pairs of (kind, text)."""


def _blamed(moment: TimelineSample, recording: Recording, places: Places) -> Iterator[Blamed]:
    phase = phase_at(moment)
    line_details = (("line", _line(moment.main)),)
    if phase is TrainerPhase.CHECKPOINT:
        yield Cause.CHECKPOINT, 1.0, (*line_details, ("call", moment.main.call), ("file", moment.main.path))
    elif phase is TrainerPhase.LOADER_START:
        yield Cause.RESTARTS, 1.0, line_details
    elif phase is TrainerPhase.COPY:
        if not _gpu_is_busy(moment):  # a copy also waits for earlier work of the GPU
            yield Cause.COPIES, 1.0, line_details
    elif phase in (TrainerPhase.UNPACK, TrainerPhase.WAIT_DATA):
        yield from _waiting(moment, recording, places)
    elif phase is TrainerPhase.FETCH or moment.main.call in _FILES:
        yield from _fetching(moment.main, 1.0, places, in_main=True)
    else:
        yield from _computing(moment, phase, recording)


def _waiting(moment: TimelineSample, recording: Recording, places: Places) -> Iterator[Blamed]:
    """Divide a wait of the trainer's main thread for its loader.

    Taking a batch apart is a wait too: tensors are fetched from the worker, which must find time for it.
    """
    if moment.main.call is KernelCall.RUN and not polls(moment.main.stack):
        yield Cause.HAND_OVER, 1.0, (("line", _line(moment.main)),)
        return
    if not moment.workers:
        yield Cause.UNKNOWN, 1.0, ()
        return
    busy = [worker for worker in moment.workers if not _idle(worker)]
    idle = len(moment.workers) - len(busy)
    if not busy:
        threads = (*moment.others, *_others(moment.workers))
        packing = [thread for thread in threads if thread.call is KernelCall.RUN]
        lines = tuple(("line", _line(thread)) for thread in packing if thread.stack)
        yield (Cause.HAND_OVER if packing else Cause.STARVED), 1.0, (*lines, ("idle", "all"))
        return
    remaining = 1.0
    if len(moment.workers) > 1 and idle / len(moment.workers) >= IDLE_FROM:
        share = idle / len(moment.workers)
        remaining -= share
        yield Cause.STARVED, share, (("idle", f"{idle} of {len(moment.workers)}"),)
    for worker in busy:
        yield from _fetching(_decisive_thread(worker), remaining / len(busy), places, in_main=False)


def _fetching(thread: Thread, share: float, places: Places, *, in_main: bool) -> Iterator[Blamed]:
    """Attribute a thread that prepares samples. `_settled` decides whether workers or cores are too few."""
    line = ("line", _line(thread))
    work = work_of(thread.stack)
    if thread.call in _FILES or (thread.call in _ANSWERS and calls_headrace(thread.stack)):
        yield from places.blamed(thread, share)
    elif thread.call is KernelCall.SOCKET or (
        work is WorkerActivity.NETWORK and thread.call is not KernelCall.RUN
    ):
        yield Cause.DIRECT, share, (line,)
    elif in_main:
        yield Cause.IN_MAIN, share, (("work", work), line)
    elif work is WorkerActivity.PACK:
        yield Cause.HAND_OVER, share, (line,)
    elif thread.call is KernelCall.RUN or (
        thread.call is KernelCall.UNKNOWN and work is not WorkerActivity.OWN
    ):
        yield Cause.PROCESSOR, share, (("work", work), line)
    else:
        yield Cause.BLOCKED, share, (("call", thread.call), line)


def _computing(moment: TimelineSample, phase: TrainerPhase, recording: Recording) -> Iterator[Blamed]:
    main = moment.main
    if _gpu_is_busy(moment) or (main.stack and waits(main.stack)):
        return  # the accelerator works, or the trainer waits for it or for a substitute
    others = _running(moment.others)
    if main.call is KernelCall.LOCK and main.stack and others:
        yield Cause.LOCK, 1.0, _line_and_holders(main, others)
    if main.call is not KernelCall.RUN:
        return  # it was woken just now
    rivals = [thread for thread in others if not waits(thread.stack)]
    if rivals:
        yield _RIVALS, len(rivals) / (len(rivals) + 1), _line_and_holders(main, rivals)
    if moment.running > 1 or recording.cores == 1:
        return
    kind = "overhead" if phase is TrainerPhase.OPTIMIZER or in_torch(main.stack) else "work"
    yield _UNSETTLED, 1.0, (("kind", kind), ("phase", phase.name.lower()), ("line", _line(main)))


def _running(threads: tuple[Thread, ...]) -> list[Thread]:
    """Return the threads that ran Python code."""
    return [thread for thread in threads if thread.call is KernelCall.RUN and thread.stack]


def _line_and_holders(main: Thread, threads: list[Thread]) -> tuple[tuple[str, str], ...]:
    return (("line", _line(main)), *(("holder", _line(thread)) for thread in threads))


def _gpu_is_busy(moment: TimelineSample) -> bool:
    return moment.gpu_busy is not None and moment.gpu_busy >= GPU_BUSY_FROM


def _settled(blames: dict[str, Blame], recording: Recording) -> dict[Cause, Blame]:
    """Decide what only the complete recording can show."""
    on_one_core = blames.pop(_UNSETTLED, None)
    if on_one_core is not None:
        has_small_steps = _steps_are_small(on_one_core, recording)
        blames[Cause.SMALL_BATCHES if has_small_steps else Cause.UNPARALLEL] = on_one_core
    rivals, locked = blames.pop(_RIVALS, None), blames.get(Cause.LOCK)
    if rivals is not None and locked is not None and locked.seconds >= RIVALS_FROM * rivals.seconds:
        locked.join(rivals)
    busy = blames.get(Cause.PROCESSOR)
    if busy is not None and _spare_cores(recording) >= SPARE_CORES_FROM:
        blames[Cause.TOO_FEW] = blames.pop(Cause.PROCESSOR)
    return {Cause(cause): blame for cause, blame in blames.items()}


def _steps_are_small(on_one_core: Blame, recording: Recording) -> bool:
    """Return whether small steps explain the time on one core.

    Much of that time must go to torch's own Python, and steps must be shorter than the sampling can follow: one sample
    then says little about the next.
    """
    overhead = on_one_core.details[("kind", "overhead")] / max(1e-9, on_one_core.seconds)
    if overhead < OVERHEAD_FROM:
        return False
    if recording.steps:
        wall_s = sum(moment.span_s for moment in recording.moments)
        return wall_s / recording.steps < SHORT_STEP_S
    phases = [phase_of(moment.main.stack) for moment in recording.moments]
    changes = sum(phase is not following for phase, following in pairwise(phases)) / len(phases)
    alike = sum((count / len(phases)) ** 2 for count in Counter(phases).values())
    return changes > UNRELATED_FROM * (1 - alike)


def _spare_cores(recording: Recording) -> float:
    """Return the number of cores that neither workers nor trainer used, on average."""
    waited = [moment for moment in recording.moments if moment.workers]
    if not waited:
        return 0.0
    workers = sum(len(moment.workers) for moment in waited) / len(waited)
    computing = sum(moment.running for moment in waited if moment.main.call is KernelCall.RUN) / len(waited)
    return recording.cores - workers - computing


class Places:
    """Choose the cause of a wait for a file, by its file system."""

    def __init__(self, places: tuple[FileSystemUsage, ...]) -> None:
        self._places = sorted(places, key=lambda place: -len(place.mountpoint))

    def of(self, path: str) -> FileSystemUsage | None:
        """Return the file system of a path; None for a page fault, whose file is unknown."""
        for place in self._places:
            if is_at_or_below(path, place.mountpoint):
                return place
        return None

    def node(self) -> FileSystemUsage | None:
        """Return the file system of the node that Headrace's library uses."""
        return next((place for place in self._places if place.storage is Storage.HEADRACE), None)

    def blamed(self, thread: Thread, share: float) -> Iterator[Blamed]:
        place = self.of(thread.path) if thread.call in _FILES else self.node()
        file = thread.path or ("a mapped file" if thread.call in _FILES else "")
        details = [("file", file), ("call", thread.call), ("line", _line(thread))]
        if place is not None:
            details.append(("place", place.mountpoint))
        if place is not None and place.storage is Storage.HEADRACE:
            for cause, weight in _sources(place):
                yield cause, share * weight, tuple(details)
        elif thread.call in _ANSWERS:
            yield Cause.ORIGIN, share, tuple(details)  # the node's status is not available
        elif thread.call is KernelCall.OPEN:
            yield Cause.METADATA, share, tuple(details)
        elif place is not None and place.storage is Storage.SHARE:
            yield Cause.SHARE, share, tuple(details)
        else:
            yield Cause.DISK, share, tuple(details)


def _sources(place: FileSystemUsage) -> list[tuple[Cause, float]]:
    """Divide a wait in a Headrace mount by the bytes from origin and peers; it is the disk's if there are none."""
    fetched_bytes = place.origin_bytes + place.peer_bytes
    if fetched_bytes == 0:
        return [(Cause.ORIGIN if place.origin_requests else Cause.DISK, 1.0)]
    shares = (
        (Cause.ORIGIN, place.origin_bytes / fetched_bytes),
        (Cause.PEER, place.peer_bytes / fetched_bytes),
    )
    return [(cause, weight) for cause, weight in shares if weight > 0]


def _idle(worker: Worker) -> bool:
    """Return whether the worker has no task, or is only known to wait."""
    if worker.main.stack:
        return work_of(worker.main.stack) is WorkerActivity.IDLE
    return worker.main.call in (KernelCall.WAIT, KernelCall.UNKNOWN)


def _decisive_thread(worker: Worker) -> Thread:
    """Return the thread that represents a worker: its main thread, or one that reads while that waits."""
    if worker.main.call in (KernelCall.LOCK, KernelCall.WAIT):
        for thread in worker.others:
            if thread.call in _FILES and thread.path:
                return Thread(thread.call, worker.main.stack, thread.path)
    return worker.main


def _others(workers: Iterable[Worker]) -> Iterator[Thread]:
    for worker in workers:
        yield from worker.others


def _line(thread: Thread) -> str:
    frame = innermost_own(thread.stack)
    return f"{frame.name} ({frame.file}:{frame.line})" if frame is not None else ""
