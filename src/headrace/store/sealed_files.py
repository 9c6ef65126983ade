"""Keep the cache files that seals need, and give them up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.model import FileId, Version
from headrace.store.file_registry import FileRegistry
from headrace.store.usage import allocated_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A file that a seal needs, as its catalogue has it. checksum: as CachedFile has it."""

    id: FileId
    version: Version
    checksum: int


class StoredSeals(NamedTuple):
    """Read the seals of a cache from its disk. read_ids: ids of the files of each seal. read_files: the same files,
    with the fields to record them again; only a start that lost the index calls it."""

    read_ids: Callable[[], Iterable[Iterable[int]]]
    read_files: Callable[[], Iterable[SealedFile]]


NO_SEALS = StoredSeals(read_ids=tuple, read_files=tuple)


class SealedFiles:
    """The files of a store's seals: they are not evicted. stored: has the seals durably. A store opens although their
    disk fails.

    Every method may be called in any thread. It blocks for the disk where it says so.
    """

    def __init__(self, files: FileRegistry, stored: StoredSeals) -> None:
        self._files = files
        self._ids = files.accounts.sealed
        self._stored = stored
        self._lock = threading.Lock()
        try:
            self.renew()
        except OSError as error:  # the images are on that disk, too, so nobody can mount them
            log.warning("the seals can't be read, and their files may be evicted error=%s", error)

    def __contains__(self, id: FileId) -> bool:
        return id in self._ids

    def begin(self, token: str) -> set[int]:
        """Return the set of a seal in the making; a file whose id is added to it is kept at once."""
        return self._ids.begin(token)

    def end(self, token: str) -> None:
        """Drop the set of a seal in the making."""
        self._ids.end(token)

    def add(self, ids: Iterable[int]) -> None:
        """Keep the files of a seal that is on the disk by now."""
        with self._lock:
            self._ids.add(ids)

    def leave_memory(self, id: FileId) -> None:
        """Let a file that is kept for a seal soon be moved to a disk, if it lies in a memory tier."""
        with self._files.lock:
            cached = self._files.index.cached(id)
            if cached is not None:
                self._files.accounts.tiered.note_placed(id, self._files.volumes[cached.volume])

    def renew(self) -> None:
        """Read from the disk the files that seals need, and release all others. Released files without a name are
        evicted first from now on. Blocks: the ids of all seals are read."""
        with self._lock:
            dropped = self._ids.replace(self._stored.read_ids())
        index = self._files.index
        with self._files.lock:
            for id in map(FileId, dropped):
                cached = index.cached(id)
                if cached is not None and cached.superseded:
                    index.supersede(id)

    def kept_ids(self) -> set[int]:
        """Return the ids of pinned and sealed files."""
        return self._files.accounts.pinned | self._ids.all()

    def bytes_of(self, ids: Iterable[int]) -> int:
        """Return the bytes on the disks of files with these ids, without those in a memory tier."""
        records = (self._files.index.cached(FileId(id)) for id in ids)
        lasts, volumes = self._files.accounts.tiered.outlives_restart, self._files.volumes
        return sum(
            allocated_bytes(cached.size_bytes)
            for cached in records
            if cached is not None and lasts(volumes[cached.volume])
        )
