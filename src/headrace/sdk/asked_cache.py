"""Provide `headrace.connect()` on a host where this user runs no node."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import cast

from headrace.base.errors import HeadraceError
from headrace.sdk.bulk_read import OnError, ReadResult, Wanted
from headrace.sdk.cache import Cache
from headrace.vfs.asked_paths import AskedPaths
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire.messages import JobStart, JobState

READ_MANY_AHEAD = 256


class AskedCache(Cache):
    """Does what a `Cache` does, but sends a request to a node for every read."""

    def __init__(self, paths: AskedPaths) -> None:
        super().__init__(
            cast(LocalVfs, paths)
        )  # it has the calls that Cache makes, or they are overridden below
        self._asked = paths

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._asked.read(os.fsencode(path), start, end)

    def read_many(
        self,
        wanted: Iterable[Wanted],
        *,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> Iterator[ReadResult]:
        under_way: deque[Future[ReadResult]] = deque()
        try:
            for number, request in enumerate(wanted):
                path, start, end = (request, 0, None) if isinstance(request, str) else request
                under_way.append(self._threads().submit(self._read_part, number, path, start, end))
                while len(under_way) >= READ_MANY_AHEAD or (under_way and under_way[0].done()):
                    yield _next_result(under_way, ordered=ordered, on_error=on_error)
            while under_way:
                yield _next_result(under_way, ordered=ordered, on_error=on_error)
        finally:
            for future in under_way:
                future.cancel()

    def _read_part(self, number: int, path: str, start: int, end: int | None) -> ReadResult:
        try:
            return ReadResult(number, path, self._asked.read(os.fsencode(path), start, end))
        except HeadraceError as error:
            return ReadResult(number, path, b"", error)

    def status(self) -> dict[str, object]:
        return self._asked.status()

    def _run(
        self, kind: str, path: str, options: dict[str, str], on_progress: Callable[[JobState], None] | None
    ) -> JobState:
        last: JobState | None = None
        for state in self._asked.run_job(JobStart(kind=kind, path=path, options=options)):
            last = state
            if on_progress is not None:
                on_progress(state)
        assert last is not None
        return last


def _next_result(under_way: deque[Future[ReadResult]], *, ordered: bool, on_error: str) -> ReadResult:
    """Remove the next result and return it. ordered: the first one, for which it waits; else any that is complete."""
    if not ordered and not under_way[0].done():
        wait(under_way, return_when=FIRST_COMPLETED)
    future = under_way[0] if ordered else next(candidate for candidate in under_way if candidate.done())
    under_way.remove(future)
    result = future.result()
    if result.error is not None and on_error == "raise":
        raise result.error
    return result
