"""Track the files of lazy seals that the cache still lacks.

A file that has arrived stays, because the seal keeps it. So a check of the first missing file of a seal shows at almost
no cost whether the seal may be complete. A count checks all files that were missing at the last count.
"""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.base.errors import HeadraceError
from headrace.base.model import FileId, Version
from headrace.seal.catalogue import Catalogue, SealId, SealRecord
from headrace.seal.snapshot import SnapshotEntry
from headrace.store.index import Index
from headrace.store.recovery import version_of
from headrace.store.store import Store
from headrace.store.usage import allocated_bytes

log = logging.getLogger(__name__)


def is_whole(store: Store, id: FileId, *, may_be_lost: bool = False) -> bool:
    """Return whether the cache has the bytes of a file, not in the spill. may_be_lost: also where a restart of the host
    loses them."""
    cached = store.index.cached(id)
    return (
        cached is not None
        and cached.trusted
        and store.volumes[cached.volume] is not store.spill
        and (may_be_lost or store.space.tiered.outlives_restart(store.volumes[cached.volume]))
        and store.holds(cached)
    )


def sealed_version(entry: SnapshotEntry) -> Version:
    return Version(entry.size_bytes, entry.mtime_ns, entry.token)


def is_sealed_version(entry: SnapshotEntry, version: Version) -> bool:
    """Return whether a version has the bytes that were sealed. A content list has no times before 1970."""
    return sealed_version(entry) == Version(version.size_bytes, max(0, version.mtime_ns), version.token)


def current_id(index: Index, top: str, entry: SnapshotEntry, id: FileId) -> FileId | None:
    """Return the id that the sealed bytes of a file have in the index: the seal's id or, after the index was lost, the
    id of the file's path. None if the index has only other bytes, or none. top: the path of the seal."""
    cached, known = index.cached(id), index.entry(id)
    versions = [version_of(cached)] if cached is not None else [known.version] if known is not None else []
    if versions:
        return id if is_sealed_version(entry, versions[0]) else None
    parent: FileId | None = FileId(1)
    child = None
    for name in [*filter(None, os.fsencode(top).split(b"/")), *entry.path.split(b"/")]:
        child = index.lookup(parent, name) if parent is not None else None
        parent = child.id if child is not None else None
    return child.id if child is not None and is_sealed_version(entry, child.version) else None


@dataclass(slots=True)
class _Missing:
    """The files of one seal. list: the id of its content list. begin: the files before it have arrived. spilled: the
    number of files that were read, and no disk had room for."""

    list: str
    ids: array[int]
    sizes: array[int]
    begin: int = 0
    spilled: int = 0
    is_readable: bool = True


class MissingFiles:
    """Counts the missing files of each lazy seal. Any thread may call any method; `check` and `count_again` block for
    the disk."""

    def __init__(self, catalogue: Catalogue, store: Store) -> None:
        self._catalogue = catalogue
        self._store = store
        self._lock = threading.Lock()
        self._seals: dict[SealId, _Missing] = {}
        self._is_unread = True
        """Some lazy seal may not be in `_seals`."""

    def may_lack(self) -> bool:
        """Return whether a seal may lack files. A new lazy seal is counted by whoever makes it."""
        return self._is_unread or bool(self._seals)

    def count(self, seal: SealId) -> int:
        """Return the number of missing files when they were counted last."""
        missing = self._seals.get(seal)
        return 0 if missing is None else len(missing.ids)

    def spilled(self, seal: SealId) -> int:
        """Return how many of them were read without room on a disk, when they were counted last."""
        missing = self._seals.get(seal)
        return 0 if missing is None else missing.spilled

    def counts(self) -> dict[SealId, int]:
        return {seal: len(missing.ids) for seal, missing in self._seals.items()}

    def forget(self, seal: SealId) -> None:
        """Read the list of a seal again at the next check: it was renewed, or a file that had arrived was lost."""
        with self._lock:
            self._seals.pop(seal, None)
            self._is_unread = True

    def size_bytes(self) -> int:
        """Return the disk space in bytes that the missing files need."""
        return sum(map(allocated_bytes, (size for each in [*self._seals.values()] for size in each.sizes)))

    def check(self) -> list[SealRecord]:
        """Read the seals that are new or renewed. Return the lazy seals that no longer lack a file."""
        with self._lock:
            self._is_unread = True  # also after an error
            records, are_all_read = self._lazy()
            self._seals = {record.seal: self._known(record) for record in records}
            self._is_unread = not are_all_read
            return [record for record in records if self._is_whole(self._seals[record.seal])]

    def count_again(self) -> None:
        """Count the missing files: 10 s for a million of them."""
        with self._lock:
            self._seals = {seal: self._counted(missing) for seal, missing in self._seals.items()}

    def _lazy(self) -> tuple[list[SealRecord], bool]:
        """Return the lazy seals, and whether the records of all seals could be read."""
        records, are_all_read = [], True
        for seal in self._catalogue.seals():
            try:
                records.append(self._catalogue.record(seal))
            except (HeadraceError, OSError):
                are_all_read = False  # `status` names damaged ones
        return [record for record in records if record.is_lazy], are_all_read

    def _known(self, record: SealRecord) -> _Missing:
        before = self._seals.get(record.seal)
        return (
            before if before is not None and before.list == record.id else self._counted(self._read(record))
        )

    def _is_whole(self, missing: _Missing) -> bool:
        while missing.begin < len(missing.ids) and is_whole(self._store, FileId(missing.ids[missing.begin])):
            missing.begin += 1
        return missing.is_readable and missing.begin == len(missing.ids)

    def _counted(self, before: _Missing) -> _Missing:
        missing = _Missing(before.list, array("Q"), array("Q"), is_readable=before.is_readable)
        for id, size_bytes in zip(before.ids, before.sizes, strict=True):
            if not is_whole(self._store, FileId(id)):
                missing.ids.append(id)
                missing.sizes.append(size_bytes)
                missing.spilled += self._is_spilled(FileId(id))
                self._store.sealed.leave_memory(FileId(id))
        return missing

    def _is_spilled(self, id: FileId) -> bool:
        cached = self._store.index.cached(id)
        return cached is not None and self._store.volumes[cached.volume] is self._store.spill

    def _read(self, record: SealRecord) -> _Missing:
        missing = _Missing(record.id, array("Q"), array("Q"))
        try:
            for entry, id in files_of(self._catalogue, record):
                if entry.is_missing:
                    current = current_id(self._store.index, record.path, entry, id) or id
                    missing.ids.append(current)
                    missing.sizes.append(entry.size_bytes)
        except (HeadraceError, OSError) as error:
            log.warning("the files of a lazy seal can't be read seal=%s error=%s", record.seal, error)
            missing.is_readable = False
        self._store.sealed.add(missing.ids)
        return missing


def files_of(catalogue: Catalogue, record: SealRecord) -> Iterator[tuple[SnapshotEntry, FileId]]:
    """Yield the files of a seal with the ids of their cache files. Raises InvalidImageError."""
    files = (entry for entry in catalogue.entries(record) if entry.is_file)
    for entry, id in zip(files, catalogue.ids(record), strict=False):
        yield entry, FileId(id)
