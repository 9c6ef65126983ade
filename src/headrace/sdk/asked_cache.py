"""`headrace.connect()` where no node of this user runs on this host."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import cast

from headrace.base.errors import HeadraceError
from headrace.sdk.asked_paths import AskedPaths
from headrace.sdk.bulk_read import OnError, ReadResult, Wanted
from headrace.sdk.cache import Cache
from headrace.sdk.local_vfs import LocalVfs
from headrace.wire.messages import JobStart, JobState

READ_MANY_AHEAD = 256


class AskedCache(Cache):
    """What a `Cache` does, but nothing is read without a question to a node."""

    def __init__(self, paths: AskedPaths) -> None:
        super().__init__(cast(LocalVfs, paths))  # it has the calls that a Cache makes but for those below
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
            for number, one in enumerate(wanted):
                path, start, end = (one, 0, None) if isinstance(one, str) else one
                under_way.append(self._threads().submit(self._read_part, number, path, start, end))
                while len(under_way) >= READ_MANY_AHEAD or (under_way and under_way[0].done()):
                    yield _taken(under_way, ordered=ordered, on_error=on_error)
            while under_way:
                yield _taken(under_way, ordered=ordered, on_error=on_error)
        finally:
            for left in under_way:
                left.cancel()

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


def _taken(under_way: deque[Future[ReadResult]], *, ordered: bool, on_error: str) -> ReadResult:
    """The next one, waited for; or any that is done."""
    if not ordered and not under_way[0].done():
        wait(under_way, return_when=FIRST_COMPLETED)
    found = under_way[0] if ordered else next(one for one in under_way if one.done())
    under_way.remove(found)
    part = found.result()
    if part.error is not None and on_error == "raise":
        raise part.error
    return part
