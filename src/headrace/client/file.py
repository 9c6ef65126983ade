"""Keep one open file of a client: read its cache file, and wait for blocks that are not there yet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from headrace.base.cancel import Cancel
from headrace.base.errors import EvictedError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.wire.message import Message
from headrace.wire.messages import Answer, FillRange

ATTEMPTS_MAX = 100
PAUSE_S_MAX = 0.05
READERS_MIN = 4
"""The newest cache files of the version, as many as these, stay open even when no thread reads from them."""
WHOLE_STEP_BYTES = 32 * BLOCK_SIZE_BYTES
"""Sequential bytes after which the node fetches the whole file (`whole_file_after_bytes`)."""


class BlockReader(Protocol):
    """Reads an open cache file, which may lack blocks: a `CacheReader`, or a descriptor that the node passed."""

    @property
    def fd(self) -> int: ...
    @property
    def complete(self) -> bool: ...
    def present(self, start: int, end: int) -> bool: ...
    def close(self) -> None: ...


Reopen = Callable[[FileId], BlockReader | None]
Ask = Callable[[Message, Cancel | None], Answer]


class OpenFile:
    """Reads one version of a file. While it is open, the cache file may be evicted and created again. Then there are
    several cache files of the same version, and `wait` returns the one that has the bytes. The descriptor that `wait`
    returned stays open until the same thread waits again. A file larger than the cache uses many cache files in
    succession. Thread-safe but for `close`."""

    def __init__(self, id: FileId, reader: BlockReader, ask: Ask, reopen: Reopen) -> None:
        self.id = id
        self._readers = [reader]  # the newest first; replaced, never changed in place
        self._ask = ask
        self._reopen = reopen
        self._following = threading.Lock()
        self._lending = threading.Lock()
        self._lent: dict[int, BlockReader] = {}  # thread → the reader it uses until it waits again

    @property
    def fd(self) -> int:
        """Return the descriptor of the newest cache file, for its attributes. Bytes are read from the descriptor that
        `wait` returns."""
        return self._readers[0].fd

    @property
    def complete(self) -> bool:
        return self._readers[0].complete

    def present(self, start: int, end: int) -> bool:
        with self._lending:
            return self._reader_with(start, end) is not None

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int:
        """Block until start to end is in a cache file, and return the descriptor to read it from. Bytes outside may
        be holes, and must not reach a user. Raise OriginError and its subclasses when the bytes can't be fetched."""
        for attempt in range(ATTEMPTS_MAX):
            with self._lending:
                reader = self._reader_with(start, end)
                if reader is not None:
                    self._lent[threading.get_ident()] = reader
                    return reader.fd
            self._ask(FillRange(id=self.id, start=start, end=end), cancel)
            self._follow_replacement(start, end)
            if attempt > 2:
                time.sleep(min(PAUSE_S_MAX, attempt / 1000))
        raise EvictedError(
            f"cache file of {self.id:x}",
            why="it was evicted again each time it was filled",
            hint="give the cache more capacity",
        )

    def wait_whole(self, size_bytes: int, cancel: Cancel | None = None) -> int:
        """Wait for the whole file, and return a descriptor of it. Request it in steps, as a reader would: the node
        fetches ahead with all its reads, and other readers do not queue behind the whole file."""
        for start in range(0, size_bytes, WHOLE_STEP_BYTES):
            self.wait(start, min(size_bytes, start + WHOLE_STEP_BYTES), cancel)
        return self.wait(0, size_bytes, cancel)

    def pread(self, count: int, offset: int) -> bytes:
        """Return bytes, fewer only at the end of the file. Block until they are cached, as `wait` does."""
        end = min(offset + count, os.fstat(self.fd).st_size)
        if end <= offset:
            return b""
        return os.pread(self.wait(offset, end), end - offset, offset)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _reader_with(self, start: int, end: int) -> BlockReader | None:
        for reader in self._readers:
            if reader.present(start, end):
                return reader
        return None

    def _follow_replacement(self, start: int, end: int) -> None:
        """Open the newest cache file, if ours lacks bytes that the node reports as present. Our file then became
        complete, or it was evicted and created again."""
        with self._following:
            if not self.present(start, end):
                newest = self._reopen(self.id)
                if newest is not None:
                    self._add_reader(newest)

    def _add_reader(self, newest: BlockReader) -> None:
        with self._lending:
            readers = [newest, *self._readers]
            lent = self._lent.values()
            kept = [reader for index, reader in enumerate(readers) if index < READERS_MIN or reader in lent]
            self._readers = kept
        for reader in readers:
            if reader not in kept:
                reader.close()
