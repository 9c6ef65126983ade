"""Keep together the node's data on each cache file: its record in the index, its bytes and rank, its open writer."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, NamedTuple

from msgspec import structs

from headrace.base import failpoint
from headrace.base.errors import StoreError
from headrace.base.model import Entry, FileId
from headrace.store.file_lives import FileLives
from headrace.store.groups import FileGroups, SpaceDivision
from headrace.store.index import Index
from headrace.store.planned_choice import PlannedChoice
from headrace.store.schema import CachedFile
from headrace.store.usage import Accounts
from headrace.store.volume import Volume
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)


class Deletion(NamedTuple):
    """Says what became of files that were to be deleted. kept: how many their disks did not let go, for the error."""

    freed_bytes: int = 0
    kept: int = 0
    error: StoreError | None = None


class FileRegistry:
    """Hold the cache files of a store, loaded from a recovered index.

    volumes: by number. lock: the store's lock, which every caller of a method holds; it comes before the lock of a
    writer and of the index. writers: the open ones; an unused writer is removed by itself.
    """

    def __init__(
        self,
        index: Index,
        volumes: list[Volume],
        policy: str,
        planned: PlannedChoice,
        lives: FileLives,
        division: SpaceDivision,
    ) -> None:
        self.index = index
        self.volumes = volumes
        self.accounts = Accounts(volumes, policy, planned, lives, FileGroups(division))
        self.lock = threading.RLock()
        self.writers: weakref.WeakValueDictionary[FileId, CacheWriter] = weakref.WeakValueDictionary()
        self.sequence = index.state.synced_sequence
        for cached in index.cached_files():
            self.add(cached)

    def is_open(self, id: FileId) -> bool:
        writer = self.writers.get(id)
        return writer is not None and not writer.closed

    def record(self, entry: Entry, volume: Volume, **details: Any) -> CachedFile:
        return CachedFile.of(entry, volume=volume.number, sequence=self.next_sequence(), **details)

    def put_new(self, record: CachedFile) -> CachedFile:
        """Write the record of a new file, and return it: superseded if no name means the file any more. A change of its
        name while it was fetched found no record to mark, and a pin of such a file could never be taken back."""
        with self.index.batch():
            if self.index.entry(record.id) is None:
                record = structs.replace(record, superseded=True)
            self.index.put_cached(record)
        return record

    def next_sequence(self) -> int:
        self.index.state.heed_clock()
        self.sequence += 1
        return self.sequence

    def watch(self, writer: CacheWriter) -> CacheWriter:
        """Register a writer of this store."""
        self.writers[writer.id] = writer
        return writer

    def forget_writer(self, id: FileId) -> None:
        writer = self.writers.pop(id, None)
        if writer is not None:
            writer.close()

    def add(self, cached: CachedFile) -> None:
        """Add the record of a file to the accounts."""
        self.sequence = max(self.sequence, cached.sequence)
        self.accounts.add(cached)
        if cached.superseded:
            self.index.supersede(cached.id)

    def discard(self, ids: list[FileId]) -> int:
        """Delete records in one commit, then files: a crash in between leaves files without a record. Return freed
        bytes. Raises StoreError if a disk keeps a file; all records and other files are gone then."""
        deletion = self.delete(ids)
        if deletion.error is not None:
            raise deletion.error
        return deletion.freed_bytes

    def forget(self, ids: list[FileId]) -> int:
        """Discard files, and return the bytes of those that are gone. What a disk keeps of them is no error: their
        records are gone, and fsck removes them later."""
        return self.delete(ids).freed_bytes

    def delete(self, ids: list[FileId]) -> Deletion:
        """Do the work of `discard`, and return what it raises."""
        records = [cached for cached in map(self.index.cached, ids) if cached is not None]
        if not records:
            return Deletion()
        with self.index.batch():
            for cached in records:
                self.index.drop_cached(cached.id)
        failpoint.hit("discard.records")
        sizes = [self._remove(cached.id) for cached in records]
        freed_bytes, errors = 0, list[StoreError]()
        for cached, size_bytes in zip(records, sizes, strict=True):
            try:
                self.volumes[cached.volume].unlink(cached.id)
                freed_bytes += size_bytes
            except StoreError as error:
                errors.append(error)
        if errors:
            log.info("a disk keeps files that were to be deleted count=%d error=%s", len(errors), errors[0])
        return Deletion(freed_bytes, len(errors), errors[0] if errors else None)

    def _remove(self, id: FileId) -> int:
        self.accounts.pinned.discard(id)
        return self.accounts.remove(id)
