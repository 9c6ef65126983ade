"""Define the causes: their names, what to try, and the gain to expect.

A gain is a speed-up by Amdahl's law, for the part of the time that a remedy takes away. The assumption is stated with
it. It is an upper bound for comparing causes, not a promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from headrace.diagnose.recording import Recording


class Cause(StrEnum):
    """Identify a cause, as the report and --json name it."""

    ORIGIN = "storage.origin"
    PEER = "storage.peer"
    DISK = "storage.disk"
    SHARE = "storage.share"
    DIRECT = "storage.network"
    METADATA = "storage.metadata"
    PROCESSOR = "loader.processor"
    TOO_FEW = "loader.too_few_workers"
    IN_MAIN = "loader.in_main_process"
    STARVED = "loader.starved"
    HAND_OVER = "loader.hand_over"
    RESTARTS = "loader.restarts"
    BLOCKED = "loader.blocked"
    COPIES = "copies"
    CHECKPOINT = "checkpoint"
    SMALL_BATCHES = "compute.small_batches"
    UNPARALLEL = "compute.unparallel"
    LOCK = "compute.interpreter_lock"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Remedy:
    """Describe a cause and its remedy. remaining: (share of the time, recording) → what remains of that share."""

    title: str
    attempt: str
    assumes: str
    remaining: Callable[[float, Recording], float]


def _none(share: float, recording: Recording) -> float:
    return 0.0


def _tenth(share: float, recording: Recording) -> float:
    return share / 10


def _half(share: float, recording: Recording) -> float:
    return share / 2


def _quarter(share: float, recording: Recording) -> float:
    return share / 4


def _beside_the_step(share: float, recording: Recording) -> float:
    """Return what remains when the work runs in parallel with the rest: the part that takes longer."""
    return max(0.0, share - (1 - share))


def _one_core_of_all(share: float, recording: Recording) -> float:
    return share / max(1, recording.cores)


def _with_workers(share: float, recording: Recording) -> float:
    """Return what remains when workers on the trainer's spare cores do the work in parallel."""
    return max(0.0, share / max(1, recording.cores - 1) - (1 - share))


def _more_workers(share: float, recording: Recording) -> float:
    """Return what remains with more workers.

    All workers are busy now, so the time shrinks in proportion to their number, down to the time of the steps.
    """
    workers = max((len(moment.workers) for moment in recording.moments), default=1) or 1
    return max(0.0, workers / max(workers + 1, recording.cores) - (1 - share))


REMEDIES: dict[Cause, Remedy] = {
    Cause.ORIGIN: Remedy(
        "the job waits for the origin",
        "load the data before the job (`headrace load PATH`), or make the cache large enough for all of it",
        "reads of cached files overlap with the step at no cost",
        _none,
    ),
    Cause.PEER: Remedy(
        "the job waits for other nodes of the cluster",
        "check the network link between the nodes; keep more copies (`headrace load PATH --replicas N`)",
        "reads of files cached on this host overlap with the step at no cost",
        _none,
    ),
    Cause.DISK: Remedy(
        "the job waits for the local disk",
        "put the data on a faster disk or on more disks; read larger pieces sequentially",
        "the disk is fast enough",
        _none,
    ),
    Cause.SHARE: Remedy(
        "the job waits for a shared or user-space file system",
        "cache it on this host: run `headrace up FOLDER MOUNTPOINT`, and read from the mountpoint",
        "reads of cached files overlap with the step at no cost",
        _none,
    ),
    Cause.DIRECT: Remedy(
        "the job waits for responses over the network",
        "read through a cache on this host: run `headrace up URL MOUNTPOINT`, or use `headrace://` paths",
        "reads of cached files overlap with the step at no cost",
        _none,
    ),
    Cause.METADATA: Remedy(
        "the job waits for metadata, not for data: many opens and stats of small files",
        "pack samples into large files (tar shards), or cache the directory with `headrace up`",
        "opens overlap with the step at no cost",
        _none,
    ),
    Cause.PROCESSOR: Remedy(
        "decoding and transforms use all processor cores",
        "do that work once, before training; use a faster decoder, smaller samples, or the GPU",
        "the work per sample is halved",
        _half,
    ),
    Cause.TOO_FEW: Remedy(
        "the loader has too few workers",
        "raise num_workers to the number of cores",
        "samples per second grow with the workers, up to the number of cores",
        _more_workers,
    ),
    Cause.IN_MAIN: Remedy(
        "the trainer's own process prepares the samples, between the steps",
        "give the DataLoader workers: start with num_workers = cores - 1",
        "workers on the other cores do it in parallel with the step",
        _with_workers,
    ),
    Cause.STARVED: Remedy(
        "workers are idle while the trainer waits for one of them",
        "raise prefetch_factor; distribute slow samples evenly over batches, or set in_order=False",
        "the idle workers share the work",
        _none,
    ),
    Cause.HAND_OVER: Remedy(
        "workers pack batches, and the trainer unpacks them",
        "return tensors or numpy arrays instead of lists of Python values; collate in the worker",
        "tensors pass through shared memory",
        _tenth,
    ),
    Cause.RESTARTS: Remedy(
        "the loader starts and ends its workers repeatedly",
        "set persistent_workers=True",
        "workers start only once",
        _none,
    ),
    Cause.BLOCKED: Remedy(
        "the data set's own code sleeps or waits for a lock",
        "see the lines of code listed above; more workers hide a wait that uses no processor",
        "twice as many waits run in parallel",
        _half,
    ),
    Cause.COPIES: Remedy(
        "the trainer copies batches between host and device, or between types",
        "set pin_memory=True and copy with non_blocking=True; convert types in the workers",
        "copies overlap with the step",
        _beside_the_step,
    ),
    Cause.CHECKPOINT: Remedy(
        "training stops while a checkpoint is saved",
        "save in the background: `headrace.checkpoint.Saver`, or torch.distributed.checkpoint's async_save",
        "a tenth of the time remains, for the copy to host memory",
        _tenth,
    ),
    Cause.SMALL_BATCHES: Remedy(
        "steps are too small: most of their time is overhead, not arithmetic",
        "raise the batch size; use torch.compile, or a fused or foreach optimizer",
        "a step takes no longer with batches four times as large",
        _quarter,
    ),
    Cause.UNPARALLEL: Remedy(
        "the trainer computes on one core while all others are idle",
        "let it use more cores (torch.set_num_threads, vectorized operations), or move the work to workers",
        "the work spreads evenly over all cores",
        _one_core_of_all,
    ),
    Cause.LOCK: Remedy(
        "the training loop waits for Python's interpreter lock",
        "move the other thread's work to a process of its own",
        "the lock is free",
        _none,
    ),
    Cause.UNKNOWN: Remedy(
        "the trainer waits for data, but its workers could not be observed",
        "run `headrace diagnose` as the job's user, or as root",
        "the wait disappears",
        _none,
    ),
}


def gain_of(cause: Cause, share: float, recording: Recording) -> float:
    """Return the speed-up to expect; 1.0 is none."""
    remaining_share = min(share, max(0.0, REMEDIES[cause].remaining(share, recording)))
    return 1 / max(0.01, 1 - share + remaining_share)
