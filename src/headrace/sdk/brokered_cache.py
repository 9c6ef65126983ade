"""Gives `headrace.connect()` the cache of a node that another user runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice

from headrace.base.errors import HeadraceError
from headrace.sdk.asked_cache import AskedCache
from headrace.sdk.bulk_read import OnError, ReadResult, Wanted
from headrace.vfs.brokered.brokered_vfs import BrokeredVfs, Opened, plain
from headrace.vfs.streams import STEP_BYTES
from headrace.wire.broker_messages import NAMES_MAX

GROUP = 32


class BrokeredCache(AskedCache):
    """Reads files of such a node. One request opens many files."""

    def __init__(self, paths: BrokeredVfs) -> None:
        super().__init__(paths)
        self._brokered = paths

    def read_many(
        self,
        wanted: Iterable[Wanted],
        *,
        ordered: bool = True,
        on_error: OnError = "raise",
    ) -> Iterator[ReadResult]:
        numbered = enumerate(wanted)
        while group := list(islice(numbered, GROUP)):
            for part in self._read_group(group):
                if part.error is not None and on_error == "raise":
                    raise part.error
                yield part

    def _read_group(self, group: list[tuple[int, Wanted]]) -> list[ReadResult]:
        requests = [(number, *((item, 0, None) if isinstance(item, str) else item)) for number, item in group]
        paths = [plain(os.fsencode(path)) for _, path, _, _ in requests]
        if sum(path.count(b"/") for path in paths) > NAMES_MAX:
            return [self._read_part(*item) for item in requests]
        opened = self._brokered.open_many(paths, 0, STEP_BYTES)
        parts: list[ReadResult] = []
        try:
            for (number, path, start, end), plain_path in zip(requests, paths, strict=True):
                parts.append(self._read_opened(number, path, plain_path, opened.pop(0), start, end))
        finally:
            for _, fd in opened:
                if fd >= 0:
                    os.close(fd)
        return parts

    def _read_opened(
        self, number: int, path: str, plain_path: bytes, opened: Opened, start: int, end: int | None
    ) -> ReadResult:
        try:
            content = self._brokered.content_of(plain_path, opened)
            try:
                return ReadResult(
                    number, path, content.read(start, content.size_bytes if end is None else end)
                )
            finally:
                content.close()
        except HeadraceError as error:
            return ReadResult(number, path, b"", error)
