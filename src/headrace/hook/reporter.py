"""Send the plans of a process to the node, in a thread, while the job goes on.

The node may be away, or be replaced by another: then everything is sent again. Without a node the job runs as it would
without a plan.
"""

from __future__ import annotations

import _thread
import atexit
import hashlib
import os
import signal
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

from .frames import PlanConnection, PlanRefusedError
from .mounts import MountedPaths
from .sample_extents import SampleExtents
from .sample_files import SampleFiles
from .samplers import next_epoch

INTERVAL_S = 0.25
"""Seconds between two reports of the position."""
IDLE_INTERVAL_S = 5.0
"""The same while the node knows no file of any loader in a mount. A report wakes this thread beside the program's."""
RETRY_S = 5.0
"""Seconds after which a node that could not be reached is tried again."""
TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 1.0
"""Seconds for which the exit of the process waits for the node at most, twice."""
SENT_AGAIN_MAX = 8
"""Times that a stream is sent again which the node has forgotten."""
NAMES_AT_ONCE = 4096
INDICES_AT_ONCE = 1 << 20
DIGEST_SAMPLES = 4096
BOUNDS_AT_ONCE = EXTENTS_AT_ONCE = 1 << 16


class ReportedStream:
    """The reads of one loader of one process. position: samples that were taken from the sampler in this epoch; the
    program's thread counts it, the reporter's reads it.

    key: what the workers call the data set. files: of its samples, if it says so itself.
    """

    def __init__(
        self,
        *,
        id: str,
        key: str,
        files: SampleFiles | SampleExtents | None,
        samples: int,
        batch_size: int,
        rank: int,
        world: int,
        index_sampler: Callable[[], Any],
    ) -> None:
        self.id = id
        self.key = key
        self.files = files
        self.samples = samples
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.index_sampler = index_sampler
        self.position = 0
        self.is_over = False
        self.current: tuple[int, array[int]] = (-1, array("I"))
        """The number of the epoch and its order. They are replaced together, as two threads use them."""

    def begin(self, order: array[int]) -> None:
        """Begin the next epoch."""
        self.position = 0
        self.current = (self.current[0] + 1, order)

    def take(self, count: int) -> None:
        """Count samples that were taken."""
        self.position += count

    def end(self) -> None:
        """Note that the loader is gone, or has no plan any more. Any thread may call it, also a finalizer."""
        self.is_over = True


class _SentState:
    """Says what the node knows of a stream. epoch: the last whose order it has. order: of that. repeats: the epoch
    before had the same, as of a program that never calls `set_epoch`. later: the order of the epoch after
    `epoch`, empty if only its sampler will know it, None if nobody has looked yet. is_used: a file of the data set is
    in a mount, as far as the node knows."""

    def __init__(self) -> None:
        self.epoch = -1
        self.order: array[int] | None = None
        self.repeats = False
        self.later: array[int] | None = None
        self.is_used = True


class Reporter:
    """Reports the streams of this process. job: the name of the job, which all its processes have."""

    def __init__(self, socket_path: str, job: str, mounts: MountedPaths) -> None:
        self._socket_path = socket_path
        self._job = job
        self._mounts = mounts
        self._streams: list[ReportedStream] = []  # programs append to it; the thread replaces it
        self._sent: dict[str, _SentState] = {}
        self._refusals: dict[str, int] = {}
        self._connection: PlanConnection | None = None
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._pid = 0
        self._said: set[str] = set()

    def add(self, stream: ReportedStream) -> None:
        """Report a stream from now on, until it is over."""
        self._streams.append(stream)
        with self._lock:
            if self._pid:
                return
            self._pid = os.getpid()
        self._start()
        os.register_at_fork(after_in_child=self._leave_to_parent)
        atexit.register(self.stop)
        if parent_process() is not None:  # such a process ends without Python's exit handlers
            Finalize(None, self.stop, exitpriority=1)

    def wake(self) -> None:
        """Report soon: an epoch begins."""
        self._wake.set()

    def say_once(self, text: str) -> None:
        """Print a line, unless it was printed before. A program without a usable stderr is not told."""
        if text not in self._said:
            self._said.add(text)
            try:
                sys.stderr.write(f"headrace: {text}\n")
            except Exception:  # noqa: BLE001 - it is None, closed, or its disk is full
                pass

    def _start(self) -> None:
        """Start the thread. Programs may wait for all threads of `threading.enumerate()`, trace them, and wait for
        signals that they block: this one is no such thread, and takes no signal."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _leave_to_parent(self) -> None:
        """Close the connection in a process that the program has forked. That may close all descriptors, and use
        their numbers for its own files."""
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        try:
            self._report_until_end()
        finally:
            self._ended.set()

    def _report_until_end(self) -> None:
        while not self._ending.is_set():
            try:
                self._wake.clear()
                if not self._ending.is_set():  # `stop` may have woken it before that
                    self._report_all()
                    self._wake.wait(self._interval_s())
            except OSError:
                self._disconnect()
                self._ending.wait(RETRY_S)
            except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
                self.say_once(f"the job runs without a plan: {error!r}")
                self._disconnect()
                return

    def _interval_s(self) -> float:
        is_idle = self._sent and not any(sent.is_used for sent in self._sent.values())
        return IDLE_INTERVAL_S if is_idle else INTERVAL_S

    def _report_all(self) -> None:
        streams = list(self._streams)
        if streams and self._connection is None:
            self._connection = PlanConnection(self._socket_path, timeout_s=TIMEOUT_S)
        for stream in streams:
            if not stream.is_over:
                self._report_or_end(stream)
            if stream.is_over:
                self._streams.remove(stream)
                self._close(stream.id)

    def _report_or_end(self, stream: ReportedStream) -> None:
        """Report a stream, and end it if that fails for another reason than the connection."""
        try:
            self._report(stream)
        except OSError:
            raise
        except PlanRefusedError as error:
            stream.end()
            self.say_once(f"the node takes no plan: {error}")
        except Exception as error:  # noqa: BLE001 - data sets and samplers are code of the program
            stream.end()
            self.say_once(f"a loader runs without a plan: {error!r}")

    def _disconnect(self) -> None:
        """Forget what the node knows: another one may answer next."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._sent.clear()

    def _report(self, stream: ReportedStream) -> None:
        sent = self._sent.get(stream.id)
        if sent is None:
            self._open(stream)
            sent = self._sent[stream.id] = _SentState()
        (epoch, order), position = stream.current, stream.position
        if sent.epoch < epoch:
            if sent.epoch + 1 != epoch or sent.later != order:
                self._send_order(stream.id, epoch, order)
            sent.repeats = sent.order is not None and sent.order == order
            sent.epoch, sent.order, sent.later = epoch, order, None
        elif sent.later is None and position:
            later = _next_epoch(stream) or array("I")
            sent.later = order if later and sent.repeats else later
            if sent.later and stream.current[0] == epoch:
                self._send_order(stream.id, epoch + 1, sent.later)
        try:
            answer = self._ask("PlanProgress", stream=stream.id, epoch=epoch, position=position)
            sent.is_used = bool(answer.get("used", True))
        except PlanRefusedError:
            # a node forgets a process that was stopped for a minute: it is told all again
            del self._sent[stream.id]
            refusals = self._refusals[stream.id] = self._refusals.get(stream.id, 0) + 1
            if refusals > SENT_AGAIN_MAX:
                raise

    def _ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        assert self._connection is not None
        return self._connection.ask(kind, **fields)

    def _open(self, stream: ReportedStream) -> None:
        names = _named(stream.files, self._mounts)
        digest = b"" if names is None else names.digest()
        answer = self._ask(
            "PlanStart",
            stream=stream.id,
            job=self._job,
            rank=stream.rank,
            world=stream.world,
            key=stream.key,
            digest=digest,
            samples=stream.samples,
            batch_size=stream.batch_size,
        )
        if names is not None and not answer.get("known"):
            for kind, fields in names.messages():
                self._ask(kind, digest=digest, **fields)

    def _send_order(self, stream: str, epoch: int, order: array[int]) -> None:
        for start in range(0, len(order), INDICES_AT_ONCE) or (0,):
            indices = _little_endian(order[start : start + INDICES_AT_ONCE])
            is_last = start + INDICES_AT_ONCE >= len(order)
            self._ask("PlanOrder", stream=stream, epoch=epoch, first=start, indices=indices, is_last=is_last)

    def stop(self) -> None:
        """Tell the node at the exit of the process that its streams are over. Without this it notices later. A process
        that the program forked has the same connection, and must not use it."""
        if os.getpid() != self._pid:
            return
        self._ending.set()
        self._wake.set()
        self._ended.wait(CLOSE_TIMEOUT_S)
        connection = self._connection
        if connection is None:
            return
        try:
            if not self._ended.is_set():
                connection.interrupt()  # the thread waits for the node
                self._ended.wait(CLOSE_TIMEOUT_S)
                return
            connection.hurry(CLOSE_TIMEOUT_S)
            for stream in self._streams:
                self._close(stream.id)
        except OSError:
            pass

    def _close(self, stream: str) -> None:
        if self._sent.pop(stream, None) is not None:
            try:
                self._ask("PlanEnd", stream=stream)
            except PlanRefusedError:
                pass  # the node has dropped it already


def _next_epoch(stream: ReportedStream) -> array[int] | None:
    index_sampler = stream.index_sampler()
    try:
        return None if index_sampler is None else next_epoch(index_sampler)
    except Exception:  # noqa: BLE001 - the program may change a sampler while this thread copies it
        return None


class _SampleNames:
    """The names of samples' files in the namespace; an empty one for a file outside all mounts."""

    def __init__(self, files: SampleFiles, mounts: MountedPaths) -> None:
        self._files = files
        self._mounts = mounts

    def digest(self) -> bytes:
        """Return what two processes with the same data set agree on: a hash of some of the names."""
        count = len(self._files)
        digest = hashlib.blake2b(str(count).encode(), digest_size=16)
        for index in range(0, count, max(1, count // DIGEST_SAMPLES)):
            digest.update(_name_of(self._files[index], self._mounts) + b"\0")
        return digest.digest()

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the messages that name all files: their kind, and their fields."""
        for start in range(0, len(self._files), NAMES_AT_ONCE):
            names = [_name_of(path, self._mounts) for path in self._files[start : start + NAMES_AT_ONCE]]
            yield "PlanNames", {"first": start, "names": b"\0".join(names)}


class _ExtentNames:
    """The extents of samples, with the names of their files as in _SampleNames."""

    def __init__(self, extents: SampleExtents, mounts: MountedPaths) -> None:
        self._extents = extents
        self._mounts = mounts

    def digest(self) -> bytes:
        return self._extents.digest()

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the messages that describe all extents, and then all samples."""
        first = 1
        for path, bounds in self._extents.files:
            name = _name_of(path, self._mounts)
            for start in range(0, len(bounds) - 1, BOUNDS_AT_ONCE - 1):
                part = bounds[start : start + BOUNDS_AT_ONCE]
                count = len(part) - 1
                yield (
                    "PlanExtents",
                    {
                        "first": first,
                        "names": name,
                        "counts": count.to_bytes(4, "little"),
                        "bounds": _little_endian(part),
                    },
                )
                first += count
        for start, width, rows, counts in self._extents.parts(EXTENTS_AT_ONCE):
            yield "PlanSamples", {"first": start, "width": width, "extents": rows, "counts": counts}


def _named(
    files: SampleFiles | SampleExtents | None, mounts: MountedPaths
) -> _SampleNames | _ExtentNames | None:
    if isinstance(files, SampleExtents):
        return _ExtentNames(files, mounts)
    return None if files is None else _SampleNames(files, mounts)


def _name_of(path: str, mounts: MountedPaths) -> bytes:
    return os.fsencode(mounts.namespace_path(path) or "")


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
