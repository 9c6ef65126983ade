"""Serve the hit path: what a client of the host reads by itself, without a request to the node.

No call here blocks on another process. A node that rebuilt its index replaces it, and a node that restarts may have
another disk or other write modes. The client then creates a new LocalCache.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.base.boot_clock import now_ns
from headrace.base.cache_names import DATA_NAME, TOGETHER_BITS
from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import Entry, FileId, ObjectMetadata
from headrace.overlay.content_type_codes import extras_by
from headrace.store.index import Index
from headrace.store.reader import CacheReader
from headrace.store.schema import content_type_code_of, unpack_entry
from headrace.store.volume import data_path, files_folder
from headrace.wire.messages import Welcome

_READ = os.O_RDONLY | os.O_CLOEXEC


class WholeFile(NamedTuple):
    """Holds a complete file. fd: of all bytes; the caller closes it. metadata: as the index has it; None if it has
    none."""

    fd: int
    entry: Entry
    metadata: ObjectMetadata | None


class LocalCache:
    """Reads the index and the cache files. touch: called for each file that `open_whole` opens. index: the node's own
    index, if this process has it open, because a process opens it only once.

    If the index names a volume that the node's welcome did not name, the node has been given a disk since. Files on
    it are requested from the node, and its answer brings another LocalCache.

    Threads may still use a LocalCache that is replaced. It closes its descriptors when none refers to it."""

    def __init__(self, welcome: Welcome, touch: Callable[[FileId], None], index: Index | None = None) -> None:
        self._touch = touch
        self.generation = welcome.generation
        self.index = index or Index.open(welcome.index, writable=False)
        self.volumes, self.tiers = welcome.volumes, welcome.tiers
        self._directory_fds = [_directory_fd(volume) for volume in welcome.volumes]
        self._close_directories = weakref.finalize(self, _close_all, tuple(self._directory_fds))
        self._close_directories.atexit = False
        self.upper, self.write = welcome.upper, welcome.write
        self.durable_puts = welcome.durable_puts

    def fresh_for_s(self, directory: FileId) -> float:
        """Return the seconds for which the listing of a whole directory stays fresh; 0 if the node must list it
        again."""
        return max(0.0, (self.index.fresh_until_ns(directory) - now_ns()) / 1e9)

    def complete_path(self, id: FileId) -> str | None:
        """Return the path of the cache file if it is complete and trusted."""
        cached = self.index.cached(id)
        if cached is None or not cached.trusted or cached.volume >= len(self.volumes):
            return None
        return data_path(self.volumes[cached.volume], id)

    def open_whole(self, parent: FileId, name: bytes) -> tuple[int, int] | None:
        """Return a descriptor of the cache file and the size if no request to the node is needed; else None. The
        caller closes the descriptor."""
        row = self.index.whole_file(parent, name, now_ns())
        if row is None:
            return None
        id, size_bytes, volume, _, _ = row
        try:
            fd = os.open(DATA_NAME % (id >> TOGETHER_BITS, id), _READ, dir_fd=self._directory_fds[volume])
        except (OSError, IndexError):
            return None  # evicted just now; the slow path reports any other error
        self._touch(id)
        return fd, size_bytes

    def open_whole_entry(self, parent: FileId, name: bytes) -> WholeFile | None:
        """Open a file as open_whole does; return it with everything that the index has about it."""
        row = self.index.whole_file(parent, name, now_ns())
        if row is None:
            return None
        _, _, volume, value, record = row
        entry = unpack_entry(parent, name, value)
        try:
            fd = os.open(
                DATA_NAME % (entry.id >> TOGETHER_BITS, entry.id), _READ, dir_fd=self._directory_fds[volume]
            )
        except (OSError, IndexError):
            return None
        self._touch(entry.id)
        return WholeFile(fd, entry, extras_by(content_type_code_of(record)))

    def reader(self, id: FileId, *, sums: bool = False) -> CacheReader | None:
        """Open the cache file, complete or not; None if nothing trusted is cached, or it was just evicted. sums: the
        caller also needs its checksums."""
        cached = self.index.cached(id)
        if cached is None or cached.unverified or cached.volume >= len(self.volumes):
            return None
        try:
            return CacheReader.open(self.volumes[cached.volume], cached, sums=sums)
        except PathNotFoundError:
            return None

    def present_share(self, id: FileId) -> float:
        """Return the cached share of a file, 0 to 1. A file that was cached before a power loss and not verified
        since counts as 0."""
        try:
            reader = self.reader(id)
        except HeadraceError:
            return 0.0
        if reader is None:
            return 0.0
        share = reader.present_share()
        reader.close()
        return share

    def close(self) -> None:
        self.index.close(clean=True)
        self._directory_fds = [-1] * len(self._directory_fds)
        self._close_directories()


def _directory_fd(volume: str) -> int:
    """Open the directory of a volume's cache files: a lookup relative to it is faster than one of a path. Return -1
    if the disk is away; the node may know more."""
    try:
        return os.open(files_folder(volume), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
