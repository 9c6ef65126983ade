"""Define the recording of a training job: moments, and their surroundings. It contains values only.

The sampler creates them, tests write them, `attribute` reads them. A moment is one trainer at one instant, with its
loader's workers; it represents the time until the next moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class KernelCall(StrEnum):
    """List what a thread waits for in the kernel; RUN for a thread that runs."""

    RUN = "run"
    READ = "read"  # bytes of a file
    OPEN = "open"  # names and attributes of files
    WRITE = "write"  # bytes of a file, and fsync
    FAULT = "fault"  # a page of a mapped file
    SOCKET = "socket"
    WAIT = "wait"  # poll and the like, and reads of pipes
    LOCK = "lock"  # futex: a lock, a condition, the interpreter's lock
    SLEEP = "sleep"
    OTHER = "other"  # includes ioctl, in which drivers of accelerators wait
    UNKNOWN = "unknown"  # asleep, in an unknown call


@dataclass(frozen=True, slots=True)
class Frame:
    """Describe one line of a Python stack. name: with its class, where Python reports it.

    text: the source line, only of the innermost frame and where the file is readable.
    """

    name: str
    file: str
    line: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Thread:
    """Describe a thread at a moment. stack: outermost frame first; empty if unknown. path: the file of `call`, if
    known."""

    call: KernelCall
    stack: tuple[Frame, ...] = ()
    path: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """Describe a process of the loader at a moment. others: other threads that ran or had a Python stack."""

    pid: int
    main: Thread
    others: tuple[Thread, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineSample:
    """Describe one moment of a trainer.

    at_s: since the sampling began. span_s: the time that the moment represents. running: threads of the trainer's
    process that ran or were ready to run. marked: whether the trainer is in a step, by the hook; None without the hook.
    """

    at_s: float
    span_s: float
    main: Thread
    workers: tuple[Worker, ...] = ()
    others: tuple[Thread, ...] = ()
    running: int = 1
    marked: bool | None = None
    trainer: int = 0
    gpu_busy: float | None = None


class Storage(StrEnum):
    """List the kinds of storage that a path can be on."""

    HEADRACE = "headrace"
    DISK = "disk"
    SHARE = "share"  # NFS and the like, and file systems in user space
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class PlanUsage:
    """Describe the plans of a node when they were furthest behind. streams: loaders that reported one. predicted,
    predicted_right: files that were predicted without a plan, and those of them that were opened."""

    streams: int = 0
    learning: int = 0
    unreliable: int = 0
    needed_bytes_s: int = 0
    fetched_bytes_s: int = 0
    predicted: int = 0
    predicted_right: int = 0


@dataclass(frozen=True, slots=True)
class FileSystemUsage:
    """Describe a mounted file system and its activity during the sampling.

    source: the device, the server, or the origin's URL. busy: share of the time that a disk was busy, None if unknown.
    origin_* and peer_*: what Headrace's node requested. plan: of that node; None if it is not known.
    """

    mountpoint: str
    storage: Storage
    kind: str
    source: str
    bytes_read: int = 0
    busy: float | None = None
    origin_bytes: int = 0
    origin_requests: int = 0
    origin_latency_s: float = 0.0
    peer_bytes: int = 0
    peer_reads: int = 0
    plan: PlanUsage | None = None


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """Hold the loader's settings that the hook recorded."""

    workers: int = 0
    prefetch: int = 0
    batch: int = 0
    persistent: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """Hold all that was sampled of a job.

    cores: those that the job may use. ended: the job ended during the sampling. link_bytes_s: speed of the fastest
    network card that reports it, or 0. bytes_read: by read calls of trainer and workers, including sockets and pipes.
    steps, samples: counted by the hook. missing: what could not be observed, in words for the user.
    """

    moments: tuple[TimelineSample, ...]
    cores: int
    ended: bool = False
    places: tuple[FileSystemUsage, ...] = ()
    link_bytes_s: int = 0
    bytes_read: int = 0
    steps: int | None = None
    samples: int | None = None
    loader: LoaderFacts | None = None
    gpus: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    """Process → its description, for the timeline."""

    @property
    def trainers(self) -> int:
        return len({moment.trainer for moment in self.moments})

    @property
    def watched_s(self) -> float:
        """Return the wall-clock time; the mean over the trainers."""
        return sum(moment.span_s for moment in self.moments) / max(1, self.trainers)
