"""Read many files in one call: what each namespace implements, and the way for nodes of other hosts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Literal, Protocol

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.fork_safe_pool import ForkSafePool
from headrace.base.os_errors import PLAIN_FILES
from headrace.vfs.streams import Content
from headrace.vfs.vfs import Vfs

READ_MANY_THREADS = 32
AHEAD = 256
"""Files that are being read or wait for the caller at most, which bounds the memory."""

Wanted = str | tuple[str, int, int | None]
"""A path, or a path with a range of bytes `start, end`; an end of None is the end of the file."""
OnError = Literal["raise", "return"]


class ReadResult(msgspec.Struct, frozen=True):
    """Holds what `read_many` read. number: of the request, from 0. error: None if `data` holds the requested bytes."""

    number: int
    path: str
    data: bytes
    error: HeadraceError | None = None


class BulkReader(Protocol):
    """Reads many files. Thread-safe, and safe after a fork."""

    def read(self, wanted: Iterable[Wanted], *, ordered: bool, on_error: OnError) -> Iterator[ReadResult]:
        """Yield the results as `Cache.read_many` promises."""

    def close(self) -> None:
        """End the threads. A later read starts new ones."""


class Reads(Protocol):
    """Makes the reads of one `read_many`."""

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        """Read as `Vfs.read` does."""

    def end(self) -> None:
        """Let the reads in progress return soon: nobody waits for them any more."""


class ReadsToTheEnd:
    """Reads of a namespace that nobody can end."""

    def __init__(self, vfs: Vfs) -> None:
        self.read = vfs.read

    def end(self) -> None:
        """Do nothing."""


class ThreadedBulkReader:
    """Reads each file by one call, many at a time in threads. vfs: stays the caller's. begin: begins the reads of one
    `read_many`."""

    def __init__(self, vfs: Vfs, *, begin: Callable[[Vfs], Reads] = ReadsToTheEnd) -> None:
        self._vfs = vfs
        self._begin = begin
        self._threads = ForkSafePool(READ_MANY_THREADS, "headrace")

    def read(self, wanted: Iterable[Wanted], *, ordered: bool, on_error: OnError) -> Iterator[ReadResult]:
        in_flight: deque[Future[ReadResult]] = deque()
        reads = self._begin(self._vfs)
        try:
            for number, request in enumerate(wanted):
                path, start, end = (request, 0, None) if isinstance(request, str) else request
                in_flight.append(
                    self._threads.executor().submit(read_file, reads.read, number, path, start, end)
                )
                while len(in_flight) >= AHEAD or (in_flight and in_flight[0].done()):
                    yield _next_result(in_flight, ordered=ordered, on_error=on_error)
            while in_flight:
                yield _next_result(in_flight, ordered=ordered, on_error=on_error)
        finally:
            for future in in_flight:
                future.cancel()
            if in_flight:  # after Ctrl-C the end of the program waits for its threads
                reads.end()

    def close(self) -> None:
        self._threads.close()


def _next_result(in_flight: deque[Future[ReadResult]], *, ordered: bool, on_error: OnError) -> ReadResult:
    """Remove the next result and return it. ordered: the first one, for which it waits; else any that is complete."""
    if not ordered and not in_flight[0].done():
        wait(in_flight, return_when=FIRST_COMPLETED)
    future = in_flight[0] if ordered else next(candidate for candidate in in_flight if candidate.done())
    in_flight.remove(future)
    result = future.result()
    if result.error is not None and on_error == "raise":
        raise result.error
    return result


def read_file(
    read: Callable[[bytes, int, int | None], bytes], number: int, path: str, start: int, end: int | None
) -> ReadResult:
    """Read bytes start to end of a file. Errors are in the result."""
    try:
        return ReadResult(number, path, read(os.fsencode(path), start, end))
    except (HeadraceError, OSError) as error:
        return failed_read(number, path, error)


def read_content(
    number: int, path: str, open_content: Callable[[], Content], start: int, end: int | None
) -> ReadResult:
    """Open a file, read bytes start to end, and close it. Errors are in the result."""
    try:
        content = open_content()
        try:
            return ReadResult(number, path, content.read(start, content.size_bytes if end is None else end))
        finally:
            content.close()
    except (HeadraceError, OSError) as error:
        return failed_read(number, path, error)


def failed_read(number: int, path: str, error: HeadraceError | OSError) -> ReadResult:
    """Return the result of a read that failed. An error of the disk that has the cache is a StoreError."""
    known = error if isinstance(error, HeadraceError) else PLAIN_FILES.translate(error, path)
    return ReadResult(number, path, b"", known)
