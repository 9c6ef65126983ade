"""Verify cache files by their checksums, and repair blocks that do not match. Bytes are read outside the store's
lock."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from msgspec import structs

from headrace.base import failpoint
from headrace.base.errors import HeadraceError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.store.checksum import verify_file
from headrace.store.disk_reader import verify_on_disk
from headrace.store.file_registry import FileRegistry
from headrace.store.fsck import FsckProgress, FsckReport, OnSound, fsck
from headrace.store.recovery import bad_blocks, doubt, unsynced_batches, version_of
from headrace.store.schema import CachedFile
from headrace.store.space import CacheSpace
from headrace.store.volume import Volume
from headrace.store.writer import CacheWriter

_verify_on_disk = partial(verify_on_disk, before_read=lambda _: None)


class FileVerifier:
    """The checks of a store's files, from any thread. A repair survives kill -9 on return, a power loss after the next
    sync of the store."""

    def __init__(self, files: FileRegistry, space: CacheSpace) -> None:
        self._files = files
        self._space = space
        self._lock = files.lock
        self._distrusted: set[int] = set()  # numbers of volumes

    def verify(self, id: FileId) -> bool:
        """Verify a file, and trust its valid blocks. Return whether no block was bad. It reads all of the file, outside
        the lock, in about 0.2 ms a MiB."""
        cached = self._files.index.cached(id)
        if cached is None:
            return False
        verify = _verify_on_disk if self._files.index.state.sync_failed else verify_file
        blocks = bad_blocks(self._files.volumes[cached.volume], cached, verify=verify)
        return self.settle(cached, blocks) == []

    def distrust_unsynced(self, volume: Volume) -> None:
        """Have those files of a disk verified before they are opened that no sync covers, because a sync failed. Only
        the first failure of a run walks over the index."""
        if volume.number in self._distrusted:
            return
        self._distrusted.add(volume.number)
        index = self._files.index
        with suppress(HeadraceError):  # the same disk may have the index
            index.state.note_failed_sync()
            for batch in unsynced_batches(index, volume):
                with self._lock:
                    doubt(index, batch)
                    self._space.note_evicted(batch)  # readers should open them again

    def fsck(self, progress: FsckProgress, on_sound: OnSound = lambda _: None) -> FsckReport:
        """Verify and repair everything; reads every cached byte, a file at a time, outside the lock. progress: files
        checked, files in all, bytes checked, bytes in all; an exception that it raises ends the check. The caller syncs
        the store if there were repairs."""
        return fsck(
            self._files.index,
            self._space.open_volumes,
            settle=self.settle,
            drop_stray=self._drop_stray,
            progress=progress,
            on_sound=on_sound,
            bytes_total=self._space.used_bytes,
        )

    def settle(self, cached: CachedFile, blocks: list[int] | None) -> list[int] | None:
        """Act on the result of a verification; return the bad blocks, None if the file is lost, [] if it changed
        meanwhile."""
        with self._lock:
            if self._files.index.cached(cached.id) != cached:
                return []
            if blocks is None:  # the file may have been renamed during the check
                blocks = bad_blocks(self._files.volumes[cached.volume], cached)
            if blocks is None or blocks or cached.unverified:
                self._repair(cached, blocks)
            if blocks is None or blocks:
                self._space.note_evicted([cached.id])  # readers should open it again
        self._space.report_evicted()
        return blocks

    def _drop_stray(self, volume: Volume, id: FileId) -> bool:
        with self._lock:
            cached = self._files.index.cached(id)
            if self._files.accounts.is_reserved(id) or (
                cached is not None and cached.volume == volume.number
            ):
                return False
            volume.unlink(id)
            return True

    def _repair(self, cached: CachedFile, blocks: list[int] | None) -> None:
        """Trust a verified file again without its bad blocks, which makes it incomplete."""
        id, volume = cached.id, self._files.volumes[cached.volume]
        if blocks is None or (blocks and cached.size_bytes <= BLOCK_SIZE_BYTES):
            self._files.forget_writer(id)
            self._files.discard([id])
            return
        if blocks:
            # the record stays so if the node dies before the end
            self._files.index.put_cached(structs.replace(cached, complete=False, unverified=True))
            failpoint.hit("repair.record")
            open_writer = self._files.writers.get(id) if self._files.is_open(id) else None
            if open_writer is None or not open_writer.drop_blocks(blocks):
                writer = CacheWriter.reopen(volume, id, version_of(cached))
                if writer is None:
                    self._files.discard([id])
                    return
                writer.drop_blocks(blocks)
                writer.close()
        complete = cached.complete and not blocks
        fixed = structs.replace(
            cached, complete=complete, unverified=False, sequence=self._files.next_sequence()
        )
        self._files.index.put_cached(fixed)
        self._files.accounts.remove(id)
        self._files.add(fixed)
