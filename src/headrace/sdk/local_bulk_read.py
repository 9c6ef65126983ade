"""Read many files of this host's node in one call. The caller's thread reads files that are in memory, and other
threads read files that are on disk. Small files that are not cached are requested from the node in groups, because a
request for each costs more than its bytes.

A group is one request on one connection; the thread that waits for it is a *lane*. The first missing small file is
requested at once. While lanes wait, further files gather. They are requested when there are enough for a group, when
a lane is free, or when the caller waits. A file that a group's answer leaves out is requested on its own; that
request reports the error.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import msgspec

from headrace.base.cancel import Cancel
from headrace.base.errors import HeadraceError
from headrace.base.fork_safe_pool import ForkSafePool
from headrace.base.model import BLOCK_SIZE_BYTES, FileId, Kind
from headrace.sdk.bulk_read import (
    AHEAD,
    READ_MANY_THREADS,
    OnError,
    ReadResult,
    Wanted,
    failed_read,
    read_content,
)
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content

LANES_MAX = 8
GROUP = 32


class _Missing(msgspec.Struct, frozen=True, eq=False):
    """Represents a small file that is not cached, as far as the index knows. result: the bytes read, or this object
    once the file is cached. In that case the caller's thread reads it in its turn, so that its bytes take no memory
    until then."""

    number: int
    path: str
    start: int
    end: int | None
    id: FileId
    result: Future[ReadResult | _Missing]


_Outcome = ReadResult | _Missing
_Started = ReadResult | Future[Any]
"""The future is one of _Outcome."""


class LocalBulkReader:
    """Reads many files of this host's node. vfs: stays the caller's."""

    def __init__(self, vfs: LocalVfs) -> None:
        self._vfs = vfs
        self._threads = ForkSafePool(READ_MANY_THREADS, "headrace")

    def read(self, wanted: Iterable[Wanted], *, ordered: bool, on_error: OnError) -> Iterator[ReadResult]:
        return _BulkRead(self._vfs, self._threads).all(wanted, ordered=ordered, on_error=on_error)

    def close(self) -> None:
        self._threads.close()


class _BulkRead:
    """Performs one call. threads: the pool for work that may block. Requests that nobody waits for any more, after an
    error or Ctrl-C, are cancelled: they kept the program waiting for a slow origin."""

    def __init__(self, vfs: LocalVfs, threads: ForkSafePool) -> None:
        self._vfs = vfs
        self._threads = threads
        self._lock = threading.Lock()
        self._cancel = Cancel()
        weakref.finalize(self, self._cancel.close).atexit = False
        self._gathered: deque[_Missing] = deque()
        self._lanes = 0

    def all(self, requests: Iterable[Wanted], *, ordered: bool, on_error: OnError) -> Iterator[ReadResult]:
        in_flight = _InOrder() if ordered else _AsCompleted()
        try:
            for number, request in enumerate(requests):
                path, start, end = (request, 0, None) if isinstance(request, str) else request
                started = self._start(number, path, start, end)
                if isinstance(started, ReadResult) and (not ordered or not in_flight.waiting):
                    yield self._result_of(started, on_error)
                    continue
                in_flight.add(started)
                is_full = len(in_flight.waiting) >= AHEAD
                if is_full:
                    self._start_lanes(least=1)
                for outcome in in_flight.take(must=is_full):
                    yield self._result_of(outcome, on_error)
            self._start_lanes(least=1)
            while in_flight.waiting:
                for outcome in in_flight.take(must=True):
                    yield self._result_of(outcome, on_error)
        finally:
            if in_flight.waiting:
                self._cancel.set()
            for pending in in_flight.waiting:
                if isinstance(pending, Future):
                    pending.cancel()

    def _start(self, number: int, path: str, start: int, end: int | None) -> _Started:
        """Read a file at once if nothing blocks, because a change of thread costs more than the read; else start to
        read it."""
        try:
            source = self._vfs.content_or_entry(os.fsencode(path))
            if isinstance(source, Content) and source.is_in_memory():
                try:
                    return ReadResult(
                        number, path, source.read(start, source.size_bytes if end is None else end)
                    )
                finally:
                    source.close()
        except (HeadraceError, OSError) as error:
            return failed_read(number, path, error)
        if isinstance(source, Content):
            content = source
            future: Future[ReadResult] = self._threads.executor().submit(
                read_content, number, path, lambda: content, start, end
            )
            future.add_done_callback(lambda done: content.close() if done.cancelled() else None)
            return future
        if source.kind is not Kind.FILE or source.version.size_bytes > BLOCK_SIZE_BYTES:
            return self._submit(number, path, start, end)
        missing = _Missing(number, path, start, end, source.id, Future())
        self._gathered.append(missing)
        self._start_lanes(least=GROUP)
        return missing.result

    def _submit(self, number: int, path: str, start: int, end: int | None) -> Future[ReadResult]:
        return self._threads.executor().submit(self._read, number, path, start, end)

    def _read(self, number: int, path: str, start: int, end: int | None) -> ReadResult:
        raw_path = os.fsencode(path)
        return read_content(number, path, lambda: self._vfs.content(raw_path, self._cancel), start, end)

    def _result_of(self, outcome: _Outcome, on_error: OnError) -> ReadResult:
        result = (
            outcome
            if isinstance(outcome, ReadResult)
            else self._read(outcome.number, outcome.path, outcome.start, outcome.end)
        )
        if result.error is not None and on_error == "raise":
            raise result.error
        return result

    # ------------------------------------------------------------ lanes

    def _start_lanes(self, *, least: int) -> None:
        """Start a first lane if any file is gathered, and further lanes while at least `least` files are gathered."""
        while self._gathered and self._lanes < LANES_MAX:
            with self._lock:
                group = self._next_group() if not self._lanes or len(self._gathered) >= least else []
                self._lanes += bool(group)
            if not group:
                return
            self._threads.executor().submit(self._run_lane, group)

    def _next_group(self) -> list[_Missing]:
        """Remove and return the next group. The lock is held."""
        return [self._gathered.popleft() for _ in range(min(GROUP, len(self._gathered)))]

    def _run_lane(self, group: list[_Missing]) -> None:
        """Request one group after the other, until none is left."""
        while group:
            try:
                self._request_group(group)
            except Exception as error:  # noqa: BLE001 - raised in the caller, which waits
                for file in group:
                    if not file.result.done():
                        file.result.set_exception(error)
            with self._lock:
                group = self._next_group()
                self._lanes -= not group

    def _request_group(self, group: list[_Missing]) -> None:
        unanswered: dict[FileId, list[_Missing]] = {}
        for file in group:
            if file.result.set_running_or_notify_cancel():
                unanswered.setdefault(file.id, []).append(file)
        try:
            for ids in self._vfs.client.open_many(list(unanswered), self._cancel) if unanswered else ():
                for id in ids:
                    for file in unanswered.pop(id, ()):
                        file.result.set_result(file)
        except HeadraceError:
            pass  # each file is requested on its own, below
        for files in unanswered.values():
            for file in files:
                self._read_alone(file)

    def _read_alone(self, file: _Missing) -> None:
        """Read a file on its own, in another thread, so that the rest of the group does not wait for it."""

        def done(read: Future[ReadResult]) -> None:
            error = read.exception() if not read.cancelled() else HeadraceError("read cancelled")
            if error is not None:
                file.result.set_exception(error)
            else:
                file.result.set_result(read.result())

        self._submit(file.number, file.path, file.start, file.end).add_done_callback(done)


class _InOrder:
    """Yields the outcomes in the order of the requests."""

    def __init__(self) -> None:
        self.waiting: deque[_Started] = deque()

    def add(self, started: _Started) -> None:
        self.waiting.append(started)

    def take(self, *, must: bool) -> Iterator[_Outcome]:
        """Yield the next outcomes that are complete. must: wait for at least one."""
        while self.waiting:
            first = self.waiting[0]
            if isinstance(first, Future) and not (must or first.done()):
                return
            outcome = first.result() if isinstance(first, Future) else first
            must = False
            self.waiting.popleft()
            yield outcome


class _AsCompleted:
    """Yields the outcomes as they complete."""

    def __init__(self) -> None:
        self.waiting: set[_Started] = set()
        self._done: SimpleQueue[Future[_Outcome]] = SimpleQueue()

    def add(self, started: _Started) -> None:
        assert isinstance(started, Future)
        self.waiting.add(started)
        started.add_done_callback(self._done.put)

    def take(self, *, must: bool) -> Iterator[_Outcome]:
        """Yield the outcomes that are complete. must: wait for at least one."""
        while self.waiting and (must or not self._done.empty()):
            future = self._done.get()
            self.waiting.discard(future)
            must = False
            yield future.result()
