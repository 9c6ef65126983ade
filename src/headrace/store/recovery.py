"""What a start makes of what the last run left, and what fsck repairs.

clean mark             everything is trusted.
same boot id           the node was killed; the page cache survived, so every bit and every record holds.
another boot id        power was lost: the index is at its last checkpoint. A file whose sequence is not
covered by the
                       last sync, and every file that was not complete, is marked unverified: no byte of it is
                       served until its checksums were checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from headrace.base.errors import CorruptIndexError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId, Version
from headrace.store.checksum import verify_file
from headrace.store.files import BlockMap
from headrace.store.index import Index
from headrace.store.schema import CachedFile
from headrace.store.volume import Volume

BATCH = 1000


@dataclass(frozen=True, slots=True)
class FsckReport:
    """ids are counted once for each kind of fault; all were repaired."""

    files_checked: int
    bytes_checked: int
    records_without_file: int
    files_without_record: int
    files_with_bad_blocks: int

    @property
    def sound(self) -> bool:
        return not (self.records_without_file or self.files_without_record or self.files_with_bad_blocks)


def recover(index: Index, volumes: list[Volume]) -> int:
    """Marks what can't be trusted and removes what no record names; the files marked."""
    for cached in index.cached_files():
        if cached.volume >= len(volumes):
            raise CorruptIndexError(
                f"index {index.folder}", why=f"it names volume {cached.volume}, which is not given"
            )
    if index.clean:
        return 0
    marked = 0
    if index.restored:
        doubtful: list[CachedFile] = []
        for cached in index.cached_files():
            if not cached.complete or cached.sequence > index.synced_sequence:
                doubtful.append(cached)
            if len(doubtful) >= BATCH:
                marked += _mark(index, doubtful)
                doubtful = []
        marked += _mark(index, doubtful)
    if index.restored or index.created:
        for volume, id in orphans(index, volumes):
            volume.unlink(id)
    return marked


def _mark(index: Index, doubtful: list[CachedFile]) -> int:
    with index.batch():
        for cached in doubtful:
            index.put_cached(replace(cached, unverified=True))
    return len(doubtful)


def orphans(index: Index, volumes: list[Volume]) -> Iterator[tuple[Volume, FileId]]:
    for volume in volumes:
        for id in volume.ids():
            cached = index.cached(id)
            if cached is None or cached.volume != volume.number:
                yield volume, id


def version_of(cached: CachedFile) -> Version:
    return Version(cached.size_bytes, cached.mtime_ns, cached.token)


def bad_blocks(volume: Volume, cached: CachedFile) -> list[int] | None:
    """The blocks said to be present whose bytes are others, and, of a complete file, those not present. None
    when the file, or its map, is not usable at all. Reads every block."""
    path = volume.data_path(cached.id)
    if not os.path.exists(path):
        path = volume.part_path(cached.id)
    map_fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cache file {path} can't be read", why=error.strerror or str(error)) from error
    try:
        stat = os.fstat(fd)
        if stat.st_size != cached.size_bytes:
            return None
        if cached.size_bytes <= BLOCK_SIZE_BYTES:
            sums = {0: cached.checksum} if cached.complete and cached.size_bytes else {}
            return list(verify_file(fd, cached.size_bytes, sums))
        map_fd = os.open(volume.map_path(cached.id), os.O_RDONLY | os.O_CLOEXEC)
        map = BlockMap(map_fd, cached.size_bytes, stat.st_ino, writable=False)
        sums = map.checksums()
        blocks = map.blocks
        map.close()
        absent = [block for block in range(blocks) if block not in sums] if cached.complete else []
        return sorted([*verify_file(fd, cached.size_bytes, sums), *absent])
    except (FileNotFoundError, ValueError):
        return None
    finally:
        os.close(fd)
        if map_fd >= 0:
            os.close(map_fd)


def fsck(
    index: Index,
    volumes: list[Volume],
    *,
    repair: Callable[[CachedFile, list[int] | None], None],
    progress: Callable[[int, int], None],
) -> FsckReport:
    """Reads every cached byte. repair: is told the bad blocks of a file, None when all of it is lost."""
    checked = bytes_checked = lost = bad = 0
    total = index.statistics()["files"]
    for cached in index.cached_files():
        blocks = bad_blocks(volumes[cached.volume], cached)
        if blocks is None:
            lost += 1
        elif blocks:
            bad += 1
        if blocks is None or blocks or cached.unverified:
            repair(cached, blocks)
        checked += 1
        bytes_checked += cached.size_bytes
        progress(checked, total)
    strays = list(orphans(index, volumes))
    for volume, id in strays:
        volume.unlink(id)
    return FsckReport(checked, bytes_checked, lost, len(strays), bad)
