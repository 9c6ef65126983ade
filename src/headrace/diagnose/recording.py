"""What is known of a training job's run: moments, and what surrounded it. Values only; the sampler makes them, tests
write them by hand, `attribute` reads them.

A moment is one trainer at one instant, with its loader's workers, and stands for the time until the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class KernelCall(StrEnum):
    """What a thread has asked the kernel for. Of a thread that runs, RUN."""

    RUN = "run"
    READ = "read"  # bytes of a file
    OPEN = "open"  # names and attributes of files
    WRITE = "write"  # bytes of a file, and fsync
    FAULT = "fault"  # a page of a mapped file
    SOCKET = "socket"
    WAIT = "wait"  # poll and the like, and reads of pipes
    LOCK = "lock"  # futex: a lock, a condition, the interpreter's lock
    SLEEP = "sleep"
    OTHER = "other"  # with ioctl, by which drivers of accelerators wait
    UNKNOWN = "unknown"  # asleep, and the kernel does not say in what


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack. name: with its class, where Python says it. text: the source line, of the innermost
    frame only and where the file can be read."""

    name: str
    file: str
    line: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Thread:
    """stack: outermost frame first; empty when it is not known. path: the file that `call` is about, where known."""

    call: KernelCall
    stack: tuple[Frame, ...] = ()
    path: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of the loader. others: its threads besides the main one that ran or had Python in them."""

    pid: int
    main: Thread
    others: tuple[Thread, ...] = ()


@dataclass(frozen=True, slots=True)
class TimelineSample:
    """at_s: since the sampling began. span_s: how long the moment stands for. running: threads of the trainer's process
    that ran or were ready to. marked: the hook's word on whether the trainer is in a step; None without the hook."""

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
    """What kind of thing a path lies on."""

    HEADRACE = "headrace"
    DISK = "disk"
    SHARE = "share"  # NFS and the like, and file systems in user space
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class FileSystemUsage:
    """A mounted file system and what it did while the job was sampled. source: the device, the server, or the origin's
    URL. busy: share of the time that a disk had work, None where that is not known. origin_* and peer_*: what
    Headrace's node asked for meanwhile."""

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


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What the hook was told of the loader."""

    workers: int = 0
    prefetch: int = 0
    batch: int = 0
    persistent: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """cores: that the job may use. ended: the job came to its end while it was watched. link_bytes_s: of the fastest
    network card that says it, 0 when none does. bytes_read: that trainer and workers read by calls, sockets and pipes
    with it. steps, samples: counted by the hook. missing: what could not be seen, in words for the user."""

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
    """Process → what it is, for the timeline."""

    @property
    def trainers(self) -> int:
        return len({one.trainer for one in self.moments})

    @property
    def watched_s(self) -> float:
        """As a clock on the wall says it: of several trainers, the mean."""
        return sum(one.span_s for one in self.moments) / max(1, self.trainers)
