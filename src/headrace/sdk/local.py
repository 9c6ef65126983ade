"""The hit path: what a client of the host reads by itself, without asking the node.

No call here blocks on another process. The index may be replaced under us when a node had to make it anew, or
the node may have another disk or other modes of writing when it comes back; the client then makes a new LocalCache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from headrace.base.boot_clock import now_ns
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId, ObjectMetadata
from headrace.overlay.content_type_codes import extras_by
from headrace.store.index import Index
from headrace.store.reader import CacheReader
from headrace.store.schema import CachedFile
from headrace.store.volume import DATA_NAME, data_path, files_folder
from headrace.wire.messages import Welcome

_READ = os.O_RDONLY | os.O_CLOEXEC


class WholeFile(NamedTuple):
    """fd: of all bytes, the caller's to close. told: what the index says of its extras, if it does."""

    fd: int
    entry: Entry
    told: ObjectMetadata | None


class LocalCache:
    """Index and cache files, read-only. touch: told of each file that `open_whole` opens. index: the node's, where it
    is open: a process opens one only once.

    A volume that the index names and the node did not is a disk that it has been given since: what lies there is asked
    for, and the node's answer brings another LocalCache."""

    def __init__(self, welcome: Welcome, touch: Callable[[FileId], None], index: Index | None = None) -> None:
        self._touch = touch
        self.generation = welcome.generation
        self.index = index or Index.open(welcome.index, writable=False)
        self.volumes = welcome.volumes
        self._folders = [_folder(volume) for volume in welcome.volumes]
        self.upper, self.write = welcome.upper, welcome.write
        self.durable_puts = welcome.durable_puts

    def fresh_for_s(self, directory: FileId) -> float:
        """Seconds for which the directory's whole listing is still good; 0 when it must be asked for."""
        return max(0.0, (self.index.fresh_until_ns(directory) - now_ns()) / 1e9)

    def complete_path(self, id: FileId) -> str | None:
        """The cache file, when it is complete and trusted."""
        cached = self.index.cached(id)
        if cached is None or not cached.trusted or cached.volume >= len(self.volumes):
            return None
        return data_path(self.volumes[cached.volume], id)

    def open_whole(self, parent: FileId, name: bytes) -> tuple[int, int] | None:
        """A descriptor of the cache file, and the size, where nobody has to be asked for anything; None: else. The
        caller closes it."""
        found = self.index.whole_file(parent, name, now_ns())
        if found is None:
            return None
        id, size_bytes, volume, _, _ = found
        try:
            fd = os.open(DATA_NAME % (id & 255, id), _READ, dir_fd=self._folders[volume])
        except (OSError, IndexError):
            return None  # evicted just now; whoever goes the long way hears of anything else
        self._touch(id)
        return fd, size_bytes

    def open_whole_entry(self, parent: FileId, name: bytes) -> WholeFile | None:
        """As open_whole, with all that the index says of the file."""
        found = self.index.whole_entry(parent, name, now_ns())
        if found is None:
            return None
        entry, volume, told = found
        try:
            fd = os.open(DATA_NAME % (entry.id & 255, entry.id), _READ, dir_fd=self._folders[volume])
        except (OSError, IndexError):
            return None
        self._touch(entry.id)
        return WholeFile(fd, entry, extras_by(told))

    def reader(self, id: FileId, *, sums: bool = False) -> CacheReader | None:
        """Opens the cache file, complete or not; None when nothing trusted is cached. sums: its checksums will be
        asked for."""
        cached = self.index.cached(id)
        if cached is None or cached.unverified or cached.volume >= len(self.volumes):
            return None
        return CacheReader.open(self.volumes[cached.volume], cached, sums=sums)

    def present_share(self, id: FileId) -> float:
        """How much of a file is cached, 0 to 1; of one that was there before a power loss and was not checked
        since: 0."""
        try:
            reader = self.reader(id)
        except HeadraceError:
            return 0.0
        if reader is None:
            return 0.0
        share = reader.present_share()
        reader.close()
        return share

    def reopen_after_fork(self) -> None:
        self.index.reopen_after_fork()

    def cached(self, id: FileId) -> CachedFile | None:
        return self.index.cached(id)

    def entry(self, id: FileId) -> Entry | None:
        return self.index.entry(id)

    def close(self) -> None:
        self.index.close(clean=True)
        folders, self._folders = self._folders, [-1] * len(self._folders)
        for folder in folders:
            if folder >= 0:
                os.close(folder)


def _folder(volume: str) -> int:
    """A descriptor of where its cache files are: a name from there on is looked up sooner than a path. -1: a disk that
    is away; the node may know more."""
    try:
        return os.open(files_folder(volume), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1
