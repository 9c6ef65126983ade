"""Read a cache file, in any process of the host. Read-only; never blocks on another process."""

from __future__ import annotations

import os

from headrace.base.errors import PathNotFoundError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.block_map import HEADER_BYTES, BlockMap
from headrace.store.checksum import block_checksum
from headrace.store.schema import CachedFile
from headrace.store.volume import data_path, map_path, part_path


class CacheReader:
    """An open cache file. fd: of the bytes; absent blocks are holes and must not be returned to users. complete: at the
    time of the open; blocks that arrive later become present one by one."""

    __slots__ = ("_bits", "_checksum", "_map", "complete", "fd")

    def __init__(self, fd: int, map: BlockMap | None, *, complete: bool, checksum: int = 0) -> None:
        self.fd = fd
        self._checksum = checksum
        self.complete = complete
        self._map = map
        self._bits = None if map is None else map.map

    @classmethod
    def open(cls, volume_folder: str, cached: CachedFile, *, sums: bool = False) -> CacheReader:
        """Open the file of a record. Raises PathNotFoundError if it is gone or differs from `cached`: read the index
        again. sums: the caller also needs `checksum`."""
        opened: list[int] = []
        complete = cached.trusted
        path = (data_path if complete else part_path)(volume_folder, cached.id)
        try:
            opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            if cached.size_bytes <= BLOCK_SIZE_BYTES or (complete and not sums):
                return cls(opened[0], None, complete=complete, checksum=cached.checksum)
            opened.append(os.open(map_path(volume_folder, cached.id), os.O_RDONLY | os.O_CLOEXEC))
            map = BlockMap(opened[1], cached.size_bytes, os.fstat(opened[0]).st_ino, writable=False)
            os.close(opened.pop())
            return cls(opened[0], map, complete=complete)
        except (FileNotFoundError, ValueError) as error:
            _close(opened)
            raise PathNotFoundError(f"cache file {path}", why="it was evicted, or became complete") from error
        except OSError as error:
            _close(opened)
            raise StoreError(f"cache file {path} can't be read", why=error.strerror or str(error)) from error

    def present(self, start: int, end: int) -> bool:
        """Return whether all of start..end (within the file) may be read."""
        if self.complete or end <= start:
            return True
        bits = self._bits
        if bits is None:
            return False
        first, last = start >> 20, (end - 1) >> 20
        if first == last:
            return bits[HEADER_BYTES + (first >> 3)] >> (first & 7) & 1 == 1
        assert self._map is not None
        return self._map.has_all(first, last + 1)

    def present_runs(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the present ranges of start..end, which begins at a block: as few as possible, in order."""
        runs: list[tuple[int, int]] = []
        for block_start in range(start, end, BLOCK_SIZE_BYTES):
            stop = min(end, block_start + BLOCK_SIZE_BYTES)
            if self.present(block_start, stop):
                first = runs.pop()[0] if runs and runs[-1][1] == block_start else block_start
                runs.append((first, stop))
        return runs

    def checksum(self, block: int) -> int:
        """Return the xxh3 of a present block, as it was when it was fetched."""
        return self._checksum if self._map is None else self._map.checksum(block)

    def file_checksum(self) -> int:
        """Return the checksum of the whole file, all of which is present: that of its only block, or the xxh3 of the
        checksums of its blocks, 8 bytes each."""
        return self._checksum if self._map is None else block_checksum(self._map.packed_checksums())

    def present_share(self) -> float:
        """Return the present share of the file's blocks, 0 to 1."""
        if self.complete:
            return 1.0
        return 0.0 if self._map is None else self._map.count() / max(1, self._map.blocks)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            if self._map is not None:
                self._map.close()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
