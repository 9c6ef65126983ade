"""Many files in one call: what is in memory at once, in the caller's thread; what is on the disk in threads; and small
files that are not cached are asked of the node in groups, as a question for each costs more than the bytes.

A group is one request on one connection, which a thread waits for: a *lane*. The first small file that is missing goes
out at once; while lanes wait, others gather, and go out as soon as there are enough for a group, a lane is free, or the
caller waits. What a group's answer leaves out is asked for by itself, which says why.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId, Kind
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.streams import Content

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

AHEAD = 256
"""So many files are under way, or wait for the caller, at once: that bounds the memory."""
LANES_MAX = 8
GROUP = 32

Wanted = str | tuple[str, int, int | None]
"""A path, or a path with the range `start, end` of bytes; None: to its end."""
OnError = Literal["raise", "return"]


class ReadResult(msgspec.Struct, frozen=True):
    """What `read_many` found. number: of the request, from 0. error: None where `data` is what was asked for."""

    number: int
    path: str
    data: bytes
    error: HeadraceError | None = None


class _Missing(msgspec.Struct, frozen=True, eq=False):
    """A small file that is not cached, as far as the index knows. found: what was read of it; or this, once it is
    cached: the caller's thread reads it when its turn comes, so that nobody holds its bytes in the meantime."""

    number: int
    path: str
    start: int
    end: int | None
    id: FileId
    found: Future[ReadResult | _Missing]


_Found = ReadResult | _Missing
_Begun = ReadResult | Future[Any]
"""The future is of a _Found."""


class BulkReader:
    """One call of `read_many`. threads: where what may wait is done."""

    def __init__(self, paths: LocalVfs, threads: Callable[[], ThreadPoolExecutor]) -> None:
        self._paths = paths
        self._threads = threads
        self._lock = threading.Lock()
        self._gathered: deque[_Missing] = deque()
        self._lanes = 0

    def all(self, wanted: Iterable[Wanted], *, ordered: bool, on_error: OnError) -> Iterator[ReadResult]:
        under_way = _InOrder() if ordered else _AsTheyCome()
        try:
            for number, one in enumerate(wanted):
                path, start, end = (one, 0, None) if isinstance(one, str) else one
                begun = self._begin(number, path, start, end)
                if isinstance(begun, ReadResult) and (not ordered or not under_way.waiting):
                    yield self._taken(begun, on_error)
                    continue
                under_way.add(begun)
                is_full = len(under_way.waiting) >= AHEAD
                if is_full:
                    self._start_lanes(least=1)
                for found in under_way.take(must=is_full):
                    yield self._taken(found, on_error)
            self._start_lanes(least=1)
            while under_way.waiting:
                for found in under_way.take(must=True):
                    yield self._taken(found, on_error)
        finally:
            for left in under_way.waiting:
                if isinstance(left, Future):
                    left.cancel()

    def _begin(self, number: int, path: str, start: int, end: int | None) -> _Begun:
        """At once, where nothing has to be waited for: another thread costs more than that."""
        try:
            found = self._paths.content_or_entry(os.fsencode(path))
            if isinstance(found, Content) and found.is_in_memory():
                try:
                    return ReadResult(
                        number, path, found.read(start, found.size_bytes if end is None else end)
                    )
                finally:
                    found.close()
        except HeadraceError as error:
            return ReadResult(number, path, b"", error)
        if isinstance(found, Content):
            cached = found
            future: Future[ReadResult] = self._threads().submit(
                _read, number, path, lambda: cached, start, end
            )
            future.add_done_callback(lambda done: cached.close() if done.cancelled() else None)
            return future
        if found.kind is not Kind.FILE or found.version.size_bytes > BLOCK_SIZE_BYTES:
            return self._alone(number, path, start, end)
        missing = _Missing(number, path, start, end, found.id, Future())
        self._gathered.append(missing)
        self._start_lanes(least=GROUP)
        return missing.found

    def _alone(self, number: int, path: str, start: int, end: int | None) -> Future[ReadResult]:
        return self._threads().submit(self._read, number, path, start, end)

    def _read(self, number: int, path: str, start: int, end: int | None) -> ReadResult:
        return _read(number, path, lambda: self._paths.content(os.fsencode(path)), start, end)

    def _taken(self, found: _Found, on_error: OnError) -> ReadResult:
        part = (
            found
            if isinstance(found, ReadResult)
            else self._read(found.number, found.path, found.start, found.end)
        )
        if part.error is not None and on_error == "raise":
            raise part.error
        return part

    # ------------------------------------------------------------ lanes

    def _start_lanes(self, *, least: int) -> None:
        """A first one for anything at all, more for each `least` that are gathered."""
        while self._gathered and self._lanes < LANES_MAX:
            with self._lock:
                group = self._group() if not self._lanes or len(self._gathered) >= least else []
                self._lanes += bool(group)
            if not group:
                return
            self._threads().submit(self._lane, group)

    def _group(self) -> list[_Missing]:
        """The lock is held."""
        return [self._gathered.popleft() for _ in range(min(GROUP, len(self._gathered)))]

    def _lane(self, group: list[_Missing]) -> None:
        """One group after the other, until none is left."""
        while group:
            try:
                self._serve(group)
            except Exception as error:  # noqa: BLE001 - handed to the one that waits
                for one in group:
                    if not one.found.done():
                        one.found.set_exception(error)
            with self._lock:
                group = self._group()
                self._lanes -= not group

    def _serve(self, group: list[_Missing]) -> None:
        left: dict[FileId, list[_Missing]] = {}
        for one in group:
            if one.found.set_running_or_notify_cancel():
                left.setdefault(one.id, []).append(one)
        try:
            for ids in self._paths.client.open_many(list(left)) if left else ():
                for id in ids:
                    for one in left.pop(id, ()):
                        one.found.set_result(one)
        except HeadraceError:
            pass  # each asks for itself
        for missing in left.values():
            for one in missing:
                self._follow(one)

    def _follow(self, one: _Missing) -> None:
        """By itself, in a thread of its own: others of the group are not to wait for it."""

        def done(alone: Future[ReadResult]) -> None:
            error = alone.exception() if not alone.cancelled() else HeadraceError("read broken off")
            if error is not None:
                one.found.set_exception(error)
            else:
                one.found.set_result(alone.result())

        self._alone(one.number, one.path, one.start, one.end).add_done_callback(done)


def _read(number: int, path: str, make: Callable[[], Content], start: int, end: int | None) -> ReadResult:
    try:
        content = make()
        try:
            return ReadResult(number, path, content.read(start, content.size_bytes if end is None else end))
        finally:
            content.close()
    except HeadraceError as error:
        return ReadResult(number, path, b"", error)


class _InOrder:
    """What was begun, given out as it was asked for."""

    def __init__(self) -> None:
        self.waiting: deque[_Begun] = deque()

    def add(self, begun: _Begun) -> None:
        self.waiting.append(begun)

    def take(self, *, must: bool) -> Iterator[_Found]:
        """Those that come next and are done. must: at least one, waited for."""
        while self.waiting:
            one = self.waiting[0]
            if isinstance(one, Future) and not (must or one.done()):
                return
            found = one.result() if isinstance(one, Future) else one
            must = False
            self.waiting.popleft()
            yield found


class _AsTheyCome:
    """What was begun, given out when it is done."""

    def __init__(self) -> None:
        self.waiting: set[_Begun] = set()
        self._done: SimpleQueue[Future[_Found]] = SimpleQueue()

    def add(self, begun: _Begun) -> None:
        assert isinstance(begun, Future)
        self.waiting.add(begun)
        begun.add_done_callback(self._done.put)

    def take(self, *, must: bool) -> Iterator[_Found]:
        """Those that are done. must: at least one, waited for."""
        while self.waiting and (must or not self._done.empty()):
            one = self._done.get()
            self.waiting.discard(one)
            must = False
            yield one.result()
