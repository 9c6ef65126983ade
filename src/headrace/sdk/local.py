"""The hit path: what a client of the host reads by itself, without asking the node.

No call here blocks on another process. The index may be replaced under us when a node had to make it anew; the
client then opens a new LocalCache.
"""

from __future__ import annotations

import time

from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId
from headrace.store.index import Index
from headrace.store.reader import CacheReader
from headrace.store.schema import CachedFile
from headrace.store.volume import data_path
from headrace.wire.messages import Welcome


class LocalCache:
    """Index and cache files, read-only."""

    def __init__(self, welcome: Welcome) -> None:
        self.generation = welcome.generation
        self.index = Index.open(welcome.index, writable=False)
        self._volumes = welcome.volumes
        self.upper, self.write = welcome.upper, welcome.write

    def fresh_for_s(self, directory: FileId) -> float:
        """Seconds for which the directory's whole listing is still good; 0 when it must be asked for."""
        return max(0.0, (self.index.fresh_until_ns(directory) - time.time_ns()) / 1e9)

    def complete_path(self, id: FileId) -> str | None:
        """The cache file, when it is complete and trusted."""
        cached = self.index.cached(id)
        if cached is None or not cached.trusted:
            return None
        return data_path(self._volumes[cached.volume], id)

    def whole_file(self, parent: FileId, name: bytes) -> tuple[FileId, int, str] | None:
        """Id, size and path of the cache file, where nobody has to be asked for anything; None: else."""
        found = self.index.whole_file(parent, name, time.time_ns())
        if found is None:
            return None
        id, size_bytes, volume = found
        return id, size_bytes, data_path(self._volumes[volume], id)

    def whole_entry(self, parent: FileId, name: bytes) -> tuple[Entry, str, int | None] | None:
        """As whole_file, with all that the index says of it; and `CachedFile.told`."""
        found = self.index.whole_entry(parent, name, time.time_ns())
        if found is None:
            return None
        entry, volume, told = found
        return entry, data_path(self._volumes[volume], entry.id), told

    def reader(self, id: FileId, *, sums: bool = False) -> CacheReader | None:
        """Opens the cache file, complete or not; None when nothing trusted is cached. sums: its checksums will be
        asked for."""
        cached = self.index.cached(id)
        if cached is None or cached.unverified:
            return None
        return CacheReader.open(self._volumes[cached.volume], cached, sums=sums)

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
