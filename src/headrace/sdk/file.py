"""One open file of a client: its cache file, and the waiting for blocks that are not there yet."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.model import FileId
from headrace.sdk.cancel import Cancel
from headrace.store.reader import CacheReader
from headrace.wire.messages import Answer, Fill, Filled, Message

Reopen = Callable[[FileId], CacheReader | None]
Ask = Callable[[Message, Cancel | None], Answer]


class OpenFile:
    """fd: of the cache file; bytes outside `present` ranges are holes, never to be shown to anybody."""

    def __init__(self, id: FileId, reader: CacheReader, ask: Ask, reopen: Reopen) -> None:
        self.id = id
        self._outlived: list[CacheReader] = []
        self._use(reader)
        self._ask = ask
        self._reopen = reopen

    def present(self, start: int, end: int) -> bool:
        return self.complete or self._reader.present(start, end)

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> None:
        """Blocks until start..end is in the cache file. OriginError and its like when it can't be had."""
        while not self.present(start, end):
            answer = self._ask(Fill(id=self.id, start=start, end=end), cancel)
            assert isinstance(answer, Filled)
            if not self.present(start, end):
                self._follow_replacement()

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self.fd, count, offset)

    def close(self) -> None:
        for reader in (self._reader, *self._outlived):
            reader.close()

    def _use(self, reader: CacheReader) -> None:
        self._reader = reader
        self.fd = reader.fd
        self.complete = reader.complete

    def _follow_replacement(self) -> None:
        """The node says the bytes are there and our file has them not: it became complete, or it was evicted and
        made again under us. The new cache file is of the same version, so the reader sees no difference. The old
        descriptor stays open: another thread may be reading from it now."""
        fresh = self._reopen(self.id)
        if fresh is not None:
            self._outlived.append(self._reader)
            self._use(fresh)
