"""One open file of a client: its cache file, and the waiting for blocks that are not there yet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from headrace.base.errors import EvictedError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.sdk.cancel import Cancel
from headrace.store.reader import CacheReader
from headrace.wire.messages import Answer, FillRange, Message

ATTEMPTS_MAX = 100
PAUSE_S_MAX = 0.05
READERS_MIN = 4
"""Cache files of the version, the newest ones, that stay open whether anybody reads from them or not."""
WHOLE_STEP_BYTES = 32 * BLOCK_SIZE_BYTES
"""After so much in a row a node fetches all of a file (`whole_file_after_bytes`)."""

Reopen = Callable[[FileId], CacheReader | None]
Ask = Callable[[Message, Cancel | None], Answer]


class OpenFile:
    """Thread-safe but for `close`. The cache file may be evicted and made again under us: then there are several,
    all of the same version, and which of them has some bytes is said by `wait`. A descriptor that it gave stays open
    until the same thread waits again: of a file that is larger than the cache there are many, one after the other."""

    def __init__(self, id: FileId, reader: CacheReader, ask: Ask, reopen: Reopen) -> None:
        self.id = id
        self._readers = [reader]  # the newest first; never changed in place
        self._ask = ask
        self._reopen = reopen
        self._following = threading.Lock()
        self._lending = threading.Lock()
        self._lent: dict[int, CacheReader] = {}  # thread → what it reads from, until it waits again

    @property
    def fd(self) -> int:
        """Of the newest cache file: for its attributes; bytes are read from what `wait` names."""
        return self._readers[0].fd

    @property
    def complete(self) -> bool:
        return self._readers[0].complete

    def present(self, start: int, end: int) -> bool:
        with self._lending:
            return self._holding(start, end) is not None

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int:
        """Blocks until start..end is in a cache file; the descriptor to read them from: bytes outside are holes,
        never to be shown to anybody. OriginError and its like when they can't be had."""
        for attempt in range(ATTEMPTS_MAX):
            with self._lending:
                reader = self._holding(start, end)
                if reader is not None:
                    self._lent[threading.get_ident()] = reader
                    return reader.fd
            self._ask(FillRange(id=self.id, start=start, end=end), cancel)
            self._follow_replacement(start, end)
            if attempt > 2:
                time.sleep(min(PAUSE_S_MAX, attempt / 1000))
        raise EvictedError(
            f"cache file of {self.id:x}",
            why="it is evicted as soon as it is filled",
            hint="give the cache more capacity",
        )

    def wait_whole(self, size_bytes: int, cancel: Cancel | None = None) -> int:
        """As `wait`, of the whole file. Asked for step by step, as a reader would: the node fetches ahead of that with
        all its reads, and others' reads are not put behind a whole file's."""
        for start in range(0, size_bytes, WHOLE_STEP_BYTES):
            self.wait(start, min(size_bytes, start + WHOLE_STEP_BYTES), cancel)
        return self.wait(0, size_bytes, cancel)

    def pread(self, count: int, offset: int) -> bytes:
        """Short at the end of the file only. Blocks where the bytes are not there, as `wait`."""
        end = min(offset + count, os.fstat(self.fd).st_size)
        if end <= offset:
            return b""
        return os.pread(self.wait(offset, end), end - offset, offset)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _holding(self, start: int, end: int) -> CacheReader | None:
        for reader in self._readers:
            if reader.present(start, end):
                return reader
        return None

    def _follow_replacement(self, start: int, end: int) -> None:
        """The node says that the bytes are there; if our file has them not, it became complete, or was evicted and
        made again."""
        with self._following:
            if not self.present(start, end):
                fresh = self._reopen(self.id)
                if fresh is not None:
                    self._take(fresh)

    def _take(self, fresh: CacheReader) -> None:
        with self._lending:
            readers = [fresh, *self._readers]
            lent = self._lent.values()
            kept = [reader for at, reader in enumerate(readers) if at < READERS_MIN or reader in lent]
            self._readers = kept
        for reader in readers:
            if reader not in kept:
                reader.close()
