"""The causes that there are: what each is called, what to try, and what that is expected to gain.

A gain is a speed-up by Amdahl's law: the part of the time that a remedy takes away, with the assumption beside it. It
is a bound to judge by, and no promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from headrace.diagnose.recording import Recording


class Cause(StrEnum):
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
    """left: (share of the time, recording) → what is left of that share."""

    title: str
    attempt: str
    assumes: str
    left: Callable[[float, Recording], float]


def _none(share: float, recording: Recording) -> float:
    return 0.0


def _tenth(share: float, recording: Recording) -> float:
    return share / 10


def _half(share: float, recording: Recording) -> float:
    return share / 2


def _quarter(share: float, recording: Recording) -> float:
    return share / 4


def _beside_the_step(share: float, recording: Recording) -> float:
    """It goes on while the rest does; what is longer than that stays."""
    return max(0.0, share - (1 - share))


def _one_core_of_all(share: float, recording: Recording) -> float:
    return share / max(1, recording.cores)


def _with_workers(share: float, recording: Recording) -> float:
    """The work moves beside the step, to workers on the cores that the trainer leaves."""
    return max(0.0, share / max(1, recording.cores - 1) - (1 - share))


def _more_workers(share: float, recording: Recording) -> float:
    """As now a worker is busy all the time, the whole time shrinks as they become more, down to that of the steps."""
    now = max((len(one.workers) for one in recording.moments), default=1) or 1
    return max(0.0, now / max(now + 1, recording.cores) - (1 - share))


REMEDIES: dict[Cause, Remedy] = {
    Cause.ORIGIN: Remedy(
        "waits for the origin",
        "load the data before the job (`headrace load PATH`), or give the cache room for all of it",
        "reads of cached files cost nothing beside the step",
        _none,
    ),
    Cause.PEER: Remedy(
        "waits for other nodes of the cluster",
        "look at the link between the nodes; keep copies here (`headrace load PATH --replicas N`)",
        "reads of files cached on this host cost nothing beside the step",
        _none,
    ),
    Cause.DISK: Remedy(
        "waits for the local disk",
        "put the data on a faster disk, or on more disks; read larger pieces in a row",
        "the disk keeps up",
        _none,
    ),
    Cause.SHARE: Remedy(
        "waits for a shared or user-space file system",
        "cache it on this host: `headrace up FOLDER MOUNTPOINT`, and read from the mountpoint",
        "reads of cached files cost nothing beside the step",
        _none,
    ),
    Cause.DIRECT: Remedy(
        "waits for answers over the network",
        "read through a cache on this host: `headrace up URL MOUNTPOINT`, or `headrace://` paths",
        "reads of cached files cost nothing beside the step",
        _none,
    ),
    Cause.METADATA: Remedy(
        "waits for names, not for bytes: many opens and looks at small files",
        "pack samples into large files (tar shards), or cache the folder with `headrace up`",
        "opens cost nothing beside the step",
        _none,
    ),
    Cause.PROCESSOR: Remedy(
        "decoding and transforms take all the processors there are",
        "do that work once, before training; take a faster decoder, smaller samples, or the GPU for it",
        "the work a sample halves",
        _half,
    ),
    Cause.TOO_FEW: Remedy(
        "too few loader workers",
        "raise num_workers to the number of cores",
        "samples a second grow with the workers, up to the cores",
        _more_workers,
    ),
    Cause.IN_MAIN: Remedy(
        "samples are prepared in the trainer's own process, between the steps",
        "give the DataLoader workers (num_workers, at first the number of cores less one)",
        "workers on the other cores do it beside the step",
        _with_workers,
    ),
    Cause.STARVED: Remedy(
        "workers stand idle while the trainer waits for one of them",
        "raise prefetch_factor; deal slow samples evenly over batches, or set in_order=False",
        "the idle workers share the work",
        _none,
    ),
    Cause.HAND_OVER: Remedy(
        "batches are packed and unpacked between workers and trainer",
        "return tensors or numpy arrays, no lists of Python values; collate in the worker",
        "tensors pass by shared memory",
        _tenth,
    ),
    Cause.RESTARTS: Remedy(
        "workers are started and ended again and again",
        "set persistent_workers=True",
        "workers start once",
        _none,
    ),
    Cause.BLOCKED: Remedy(
        "the data set's own code sleeps or waits for a lock",
        "see the lines below; more workers hide a wait that costs no processor",
        "as many waits again go on side by side",
        _half,
    ),
    Cause.COPIES: Remedy(
        "copies of batches between host and device, or between types",
        "set pin_memory=True and copy with non_blocking=True; convert types in the workers",
        "copies go on beside the step",
        _beside_the_step,
    ),
    Cause.CHECKPOINT: Remedy(
        "training stops while a checkpoint is saved",
        "save in the background: `headrace.checkpoint.Saver`, or torch.distributed.checkpoint's async_save",
        "a tenth is left, for the copy to host memory",
        _tenth,
    ),
    Cause.SMALL_BATCHES: Remedy(
        "steps are too small: what a step costs besides arithmetic rules",
        "raise the batch size; torch.compile, or a fused or foreach optimizer",
        "batches four times as large cost as much a step",
        _quarter,
    ),
    Cause.UNPARALLEL: Remedy(
        "the trainer computes on one core, and nothing beside it",
        "let it use more cores (torch.set_num_threads, vectorized operations), or move the work to workers",
        "it spreads over all cores evenly",
        _one_core_of_all,
    ),
    Cause.LOCK: Remedy(
        "the training loop waits for Python's interpreter lock",
        "move the other thread's work to a process of its own",
        "the lock is free",
        _none,
    ),
    Cause.UNKNOWN: Remedy(
        "the trainer waits for data, and its workers could not be seen",
        "run it as the job's own user, or as root",
        "all of the wait goes",
        _none,
    ),
}


def gain_of(cause: Cause, share: float, recording: Recording) -> float:
    """The speed-up to expect, 1.0 being none."""
    left = min(share, max(0.0, REMEDIES[cause].left(share, recording)))
    return 1 / max(0.01, 1 - share + left)
