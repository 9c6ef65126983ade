"""Keep the cache files that seals need, and give them up."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from headrace.base.model import FileId
from headrace.store.file_registry import FileRegistry
from headrace.store.usage import allocated_bytes


class SealedFiles:
    """The files of a store's seals: they are not evicted. The catalogue of seals has them durably.

    Every method may be called in any thread.
    """

    def __init__(self, files: FileRegistry) -> None:
        self._files = files
        self._ids = files.accounts.sealed

    def __contains__(self, id: FileId) -> bool:
        return id in self._ids

    def begin(self, seal: str) -> set[int]:
        """Return the set of a seal in the making; a file whose id is added to it is kept at once."""
        return self._ids.begin(seal)

    def end(self, seal: str) -> None:
        """Drop the set of a seal in the making."""
        self._ids.end(seal)

    def put(self, seal: str, ids: array[int]) -> None:
        """Keep the files of a seal."""
        self._ids.put(seal, ids)

    def drop(self, seal: str) -> None:
        """Give up the files of a seal. Those that have no name any more are evicted first from now on."""
        index, ids = self._files.index, self._ids.drop(seal)
        with self._files.lock:
            for id in map(FileId, ids):
                cached = index.cached(id)
                if cached is not None and cached.superseded:
                    index.supersede(id)

    def kept_ids(self) -> set[int]:
        """Return the ids of pinned and sealed files."""
        return self._files.accounts.pinned | self._ids.all()

    def bytes_of(self, ids: Iterable[int]) -> int:
        """Return the bytes on the disks of files with these ids."""
        records = (self._files.index.cached(FileId(id)) for id in ids)
        return sum(allocated_bytes(cached.size_bytes) for cached in records if cached is not None)
