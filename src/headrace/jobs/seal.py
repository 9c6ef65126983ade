"""Seal a directory: freeze its listing, load and keep its files, and write the image. Verify and remove seals.

A lazy seal keeps what is cached, and loads nothing (`lazy_seals.py`).

The frozen entries are written to a file, because a list of a million entries would not fit into memory. The job ends
with a seal or with none: a file that can't be loaded, or changes meanwhile, fails it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import stat
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, BinaryIO, TypeVar

import msgspec

from headrace.base.cache_names import LAYOUT
from headrace.base.decoding import msgpack_decoder
from headrace.base.errors import (
    HeadraceError,
    InvalidImageError,
    NoSpaceError,
    NotADirectoryPathError,
    UsageError,
)
from headrace.base.model import Entry, FileId, Kind
from headrace.base.sizes import show_size
from headrace.base.tasks import ended
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.jobs.files import FileWork, LoadJob
from headrace.jobs.leave_memory import LeavingFiles
from headrace.jobs.missing_files import MissingFiles, is_whole
from headrace.jobs.progress import JobProgress, count_verified, each_file
from headrace.jobs.sealed_checksum import stored_checksum
from headrace.jobs.sealed_objects import SealedObjects
from headrace.jobs.walk import NAMES_AT_ONCE
from headrace.namespace.namespace import Namespace
from headrace.seal.catalogue import Catalogue, Draft, SealId, SealRecord, drop_generation
from headrace.seal.erofs import ImageEntry
from headrace.seal.mounted import mountpoints, mounts_of
from headrace.seal.probe import seal_trouble
from headrace.seal.snapshot import SnapshotEntry, SnapshotWriter
from headrace.seal.stored_image import drop_older_images, image_entry
from headrace.seal.writer import write_image
from headrace.store.recovery import version_of
from headrace.store.store import Store
from headrace.store.usage import allocated_bytes

FILE_MODE, DIRECTORY_MODE = stat.S_IFREG | 0o444, stat.S_IFDIR | 0o555
"""Modes that an image shows if the origin stores none; a read-only mount shows the same."""
NOT_CACHED = "it is not in the cache"
_LENGTH_BYTES = 4

Result = TypeVar("Result")


class Sealing:
    """Makes, verifies and removes the seals of this node. modes: names the directories that users can write. missing:
    the missing files of its lazy seals."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        files: FileWork,
        catalogue: Catalogue,
        disk: Executor,
        *,
        modes: WriteModes,
        missing: MissingFiles,
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._files = files
        self._catalogue = catalogue
        self._disk = disk
        self._modes = modes
        self._objects = SealedObjects(namespace.tree.mounts)
        self._missing = missing

    async def make(
        self,
        path: bytes,
        seal: SealId,
        progress: JobProgress,
        *,
        automatic: bool = False,
        lazy: bool = False,
    ) -> SealId:
        """Make a seal of a directory, and return it: with version 0, the next one of its name. It is durable on return,
        and its id is in progress. Failed files are there, too, and then there is no seal. lazy: files that the cache
        lacks are not loaded. NoSpaceError, before anything is loaded, where the cache is too small. Raises UsageError
        or HeadraceError."""
        if hint := self.how_to_protect(path):
            why = "its files can be written on this node"
            raise UsageError(f"seal {os.fsdecode(path)}", why=why, hint=hint)
        if not seal.version:
            seal = SealId(seal.name, self._catalogue.next_version(seal.name))
        with self._catalogue.draft(seal) as draft:  # it reserves the version before another job runs
            kept = self._store.sealed.begin(str(seal))
            try:
                await self._freeze(path, draft, progress)
                needed = await self.in_thread(self.keep_cached, draft, kept, progress)
                await self.in_thread(self.check_room, needed, os.fsdecode(path))
                await self.in_thread(begin_to_leave, self._store, draft)
                if not lazy:
                    await self.load_missing(draft, progress)
                if not progress.failed_files:
                    record = self._record_of(draft.seal, path, progress, automatic=automatic)
                    await self.in_thread(self._publish, draft, record, progress, lazy)
            finally:
                self._store.sealed.end(str(seal))
        return seal

    def how_to_protect(self, path: bytes) -> str:
        """Return how to start the node so that no file at or below a path can be written; "" if none can be. Only such
        directories are sealed."""
        if not self._modes.any_below(path):
            return ""
        if self._modes.of(path) is WriteMode.OFF:
            return "start the node without the write modes of directories below it"
        words = "off" if path == b"/" else f"MODE,{os.fsdecode(path)}=off"
        return f"start the node without writing there: `headrace up … --write {words}`"

    async def remove(
        self, seal: SealId, progress: JobProgress | None = None, *, at_once: bool = False
    ) -> None:
        """Remove a seal that is not mounted. Its files may be evicted when nobody reads it any more. at_once: they may
        be evicted now. Raises PathNotFoundError or UsageError."""
        await self.in_thread((progress or JobProgress()).finish, self._remove, seal, at_once)

    async def release_unused(self) -> bool:
        """Let files of removed seals be evicted that nobody reads any more. Return whether there was such a seal."""
        return await self.in_thread(self._release_unused)

    def status(self) -> dict[str, object]:
        """Return the seals, where they are mounted, why they can't be, or why they can't be read. Blocks for small
        files."""
        try:
            places = mountpoints(self._catalogue)
            seals = self._catalogue.seals()
            in_use = self._catalogue.in_use()
        except OSError as error:
            return unread_status(f"the directory of the seals can't be read: {error.strerror or error}")
        rows = [{**self._summary(seal), "mounted": places.get(str(seal), [])} for seal in seals]
        return {"seals": rows, "seals_in_use": in_use, "seal_trouble": self.trouble, "seals_unread": ""}

    def _summary(self, seal: SealId) -> dict[str, Any]:
        try:
            record = self._catalogue.record(seal)
        except (HeadraceError, OSError) as error:
            return {
                "seal": str(seal),
                "path": "",
                "files": 0,
                "size_bytes": 0,
                "missing_files": 0,
                "missing_why": "",
                "trouble": str(error),
            }
        return {
            "seal": str(seal),
            "path": record.path,
            "files": record.files,
            "size_bytes": record.size_bytes,
            "missing_files": self._missing.count(seal),
            "missing_why": _why_missing(self._missing.spilled(seal)),
            "trouble": "",
        }

    @functools.cached_property
    def trouble(self) -> str:
        """Return why no seal of this node can be mounted, by a test; "" if they can."""
        return seal_trouble(self._store.disks[0].folder)

    async def verify(self, seal: SealId, progress: JobProgress) -> None:
        """Verify that every file of a seal is cached with the bytes that were sealed. Bad blocks are removed from the
        cache. Raises InvalidImageError for a list or an image that is not the recorded one. What a lazy seal still
        lacks is no failure, as long as its origin has the sealed version."""
        record = await self.in_thread(self._catalogue.record, seal)
        progress.files_total, progress.bytes_total, progress.listing = record.files, record.size_bytes, False
        ids = iter(await self.in_thread(self._catalogue.ids, record))
        entries = self._catalogue.entries(record)
        while batch := await self.in_thread(_next_files, entries):
            uncached = []
            for entry in batch:
                why = await self.in_thread(self._fault, entry, next(ids, None))
                if why == NOT_CACHED:
                    uncached.append(entry)
                else:
                    count_verified(progress, entry, why)
            for entry, lost in zip(uncached, await self._objects.faults(record.path, uncached), strict=True):
                still_there = "" if entry.is_missing else f"{NOT_CACHED}; its origin has it still"
                count_verified(progress, entry, lost or still_there)

    # ------------------------------------------------------------ the steps of make

    async def _freeze(self, path: bytes, draft: Draft, progress: JobProgress) -> None:
        """Write the entries of the tree to the draft, each with its path below the top."""
        top = await self._namespace.resolver.resolve(path)
        if top.kind is not Kind.DIRECTORY:
            raise NotADirectoryPathError(f"seal {os.fsdecode(path)}", why="only directories can be sealed")
        encoder = msgspec.msgpack.Encoder()
        with draft.create("rows") as out:
            async for below, entry in self._walk(top):
                write_row(out, encoder.encode((below, entry)))
                if entry.kind is Kind.FILE:
                    progress.files_total += 1
                    progress.bytes_total += entry.version.size_bytes
        progress.listing = False

    async def _walk(self, top: Entry) -> AsyncIterator[tuple[bytes, Entry]]:
        """Yield the tree in the order of an image: everything below a directory before the next name."""
        yield b"", top
        listings, index = self._namespace.listings, self._store.index
        await listings.list(top.id)
        stack, count = [(b"", index.children(top.id))], 0
        while stack:
            prefix, children = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                continue
            count += 1
            if count % NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            path = prefix + child.name
            yield path, child
            if child.kind is Kind.DIRECTORY:
                await listings.list(child.id)
                stack.append((path + b"/", index.children(child.id)))

    def keep_cached(self, draft: Draft, kept: set[int], progress: JobProgress) -> int:
        """Keep the files that are in the cache, and write the others to the draft. Return how many bytes of the disks
        those need."""
        needed, encoder = 0, msgspec.msgpack.Encoder()
        with draft.create("missing") as out:
            for path, entry in rows_of(draft, "rows"):
                if entry.kind is not Kind.FILE:
                    continue
                kept.add(entry.id)  # before it is read or loaded, so that it is not evicted from now on
                if self.is_whole(entry):
                    progress.files_done += 1
                    progress.bytes_done += entry.version.size_bytes
                else:
                    needed += allocated_bytes(entry.version.size_bytes)
                    write_row(out, encoder.encode((path, entry)))
        return needed

    def is_whole(self, entry: Entry, *, may_be_lost: bool = False) -> bool:
        """Return whether the cache has the bytes of a file, on a disk. may_be_lost: also in a memory tier, which the
        file leaves for a seal."""
        return is_whole(self._store, entry.id, may_be_lost=may_be_lost)

    def check_room(self, needed: int, path: str) -> None:
        """Raise NoSpaceError if the files don't fit beside those that are pinned or sealed already, and those that lazy
        seals will need."""
        needed += self._missing.size_bytes()
        disks = [disk for disk in self._store.disks if self._store.space.tiered.outlives_restart(disk)]
        capacity = sum(disk.capacity_bytes for disk in disks)
        index_bytes = self._store.index.size_bytes
        if needed <= capacity - sum(disk.used_bytes for disk in disks) - index_bytes:
            return  # nothing has to be evicted, and a million records need not be read
        kept_bytes = self._store.sealed.bytes_of(self._store.sealed.kept_ids())
        room = capacity - kept_bytes - self._store.space.written_bytes - min(index_bytes, capacity // 2)
        if needed > room:
            raise NoSpaceError(
                f"seal {path}",
                why=f"its files need {show_size(needed)} more, and beside pinned and sealed files there is room for "
                f"{show_size(max(0, room))}",
                hint="give the cache more capacity, or remove pins and seals",
            )

    async def load_missing(self, draft: Draft, progress: JobProgress) -> None:
        leaving = LeavingFiles(self._store)

        async def files() -> AsyncIterator[tuple[bytes, Entry]]:
            for row in rows_of(draft, "missing"):
                yield row

        async def load(entry: Entry) -> int:
            size_bytes = await self._files.load(entry, job=LoadJob("seals"))
            if size_bytes and not self.is_whole(entry):
                await leaving.wait_for(entry.id)
            return size_bytes

        await each_file(files(), load, progress)

    def _record_of(self, seal: SealId, path: bytes, progress: JobProgress, *, automatic: bool) -> SealRecord:
        """Return the record of a seal whose list and image are not written yet."""
        return SealRecord(
            *(seal.name, seal.version, os.fsdecode(path), "", ""),
            files=progress.files_total,
            size_bytes=progress.bytes_total,
            created_s=time.time(),
            layout=LAYOUT,
            automatic=automatic,
        )

    def _publish(self, draft: Draft, record: SealRecord, progress: JobProgress, lazy: bool) -> None:  # noqa: FBT001
        def rows() -> Iterator[tuple[SnapshotEntry, int]]:
            for path, entry in rows_of(draft, "rows"):
                progress.check_cancelled()
                yield self._snapshot_entry(path, entry, lazy=lazy), entry.id

        record, ids = self._write(draft, record, rows())
        for name in ("rows", "missing"):
            os.unlink(os.path.join(draft.folder, name))
        self._store.sync()  # a power loss must not leave a seal of files that are not trusted
        progress.finish(self._catalogue.publish, draft, record)
        progress.data = {str(record.seal): record.id}
        self._store.sealed.add(ids)
        if record.is_lazy:
            self._missing.check()
        drop_older_images(self._catalogue, record)

    def renew(self, record: SealRecord, rows: Iterator[tuple[SnapshotEntry, int]]) -> None:
        """Make other rows, with the ids of their cache files, the next generation of a seal, durably. Blocks. Nothing
        of it is left where that fails, as on a full disk."""
        draft = Draft(record.seal, os.path.join(self._catalogue.folder, str(record.seal)))
        try:
            record, ids = self._write(draft, record, rows)
            self._store.sync()
        except BaseException:
            drop_generation(self._catalogue, record)
            raise
        self._catalogue.renew(record)
        self._store.sealed.add(ids)

    def _write(
        self, draft: Draft, record: SealRecord, rows: Iterator[tuple[SnapshotEntry, int]]
    ) -> tuple[SealRecord, array[int]]:
        """Write the list, the ids and the image of a record, and return it with their digests."""
        ids: array[int] = array("Q")
        with (
            draft.create_list(record.file_name("list")) as list_file,
            draft.create(record.file_name("image")) as image,
        ):
            snapshot = SnapshotWriter(list_file)
            digest = write_image(_image_entries(rows, snapshot, ids), image.fileno())
        with draft.create(record.file_name("ids")) as out:
            out.write(b"".join(id.to_bytes(8, "little") for id in ids))
        record = msgspec.structs.replace(record, id=snapshot.finish(), image=digest, missing=snapshot.missing)
        return record, ids

    def _snapshot_entry(self, path: bytes, entry: Entry, *, lazy: bool) -> SnapshotEntry:
        mtime_ns = max(0, entry.mtime_ns)
        if entry.kind is Kind.DIRECTORY:
            return SnapshotEntry(path, DIRECTORY_MODE, mtime_ns=mtime_ns)
        mode, uid, gid = FILE_MODE, None, None
        if entry.attributes is not None and entry.attributes.mode is not None:
            mode = stat.S_IFREG | entry.attributes.mode
            uid, gid = entry.attributes.uid, entry.attributes.gid
        return SnapshotEntry(
            *(path, mode, entry.version.size_bytes, mtime_ns, uid, gid, entry.version.token),
            checksum=None
            if lazy and entry.version.size_bytes and not self.is_whole(entry)
            else self.checksum(os.fsdecode(path), entry),
        )

    def checksum(self, path: str, entry: Entry) -> int:
        """Return the checksum of a whole file. Raises StoreError if the cache has no longer all of that version."""
        return stored_checksum(self._store, path, entry)

    # ------------------------------------------------------------ the steps of verify and remove

    def _fault(self, entry: SnapshotEntry, number: int | None) -> str:
        """Return what is wrong with a file of a seal; "" for nothing."""
        if number is None:
            raise InvalidImageError("the ids of a seal", why="there are too few", hint="seal again")
        if not entry.size_bytes:
            return ""
        id = FileId(number)
        cached = self._store.index.cached(id)
        if cached is None or not cached.complete:
            return NOT_CACHED
        try:
            if not self._store.verifier.verify(id):
                return "its bytes were damaged, and are removed from the cache"
            checksum = self.checksum(
                os.fsdecode(entry.path), Entry(id, FileId(0), b"", Kind.FILE, version_of(cached))
            )
            if not entry.is_missing and checksum != entry.checksum:
                return "the cache has other bytes than those that were sealed"
        except HeadraceError as error:
            return str(error)
        return ""

    def _remove(self, seal: SealId, at_once: bool) -> None:  # noqa: FBT001 - a thread's call has positions only
        mounted = mounts_of(self._catalogue, seal)
        if mounted:
            raise UsageError(
                f"seal {seal}",
                why=f"it is mounted at {mounted[0]}",
                hint=f"run `headrace seal remove {seal}`",
            )
        if at_once:
            self._catalogue.remove_at_once(seal)
        else:
            self._catalogue.remove(seal)
        self._store.sealed.renew()

    def _release_unused(self) -> bool:
        released = self._catalogue.remove_unused()
        if released:
            self._store.sealed.renew()
        return released

    async def in_thread(self, work: Callable[..., Result], *arguments: object) -> Result:
        """Run work in a thread, and wait for its end also when the job is cancelled, however often: the draft must not
        be removed beneath it."""
        return await ended(asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments))


def unread_status(why: str) -> dict[str, object]:
    """Return the fields of `Sealing.status` while the seals can't be read."""
    return {"seals": [], "seals_in_use": [], "seal_trouble": "", "seals_unread": why}


def _image_entries(
    rows: Iterator[tuple[SnapshotEntry, int]], snapshot: SnapshotWriter, ids: array[int]
) -> Iterator[ImageEntry]:
    """Yield what an image shows of rows, and add them to a content list and to the ids of files."""
    for entry, id in rows:
        snapshot.add(entry)
        if entry.is_file:
            ids.append(id)
        yield image_entry(entry, id)


def _why_missing(spilled: int) -> str:
    """Return why a lazy seal does not become whole although its files are read. spilled: such files."""
    if not spilled:
        return ""
    return (
        f"no disk of the cache has room for {spilled} files that were read: give the cache more capacity, or remove "
        "pins and seals"
    )


def write_row(out: BinaryIO, row: bytes) -> None:
    out.write(len(row).to_bytes(_LENGTH_BYTES, "little") + row)


def begin_to_leave(store: Store, draft: Draft) -> None:
    """Let the mover of tiers have all files that must leave memory. Call it when there is room for them: a refused seal
    moves nothing."""
    for _, entry in rows_of(draft, "missing"):
        store.sealed.leave_memory(entry.id)


def rows_of(draft: Draft, name: str) -> Iterator[tuple[bytes, Entry]]:
    decoder = msgpack_decoder(tuple[bytes, Entry])
    with open(os.path.join(draft.folder, name), "rb") as file:
        while head := file.read(_LENGTH_BYTES):
            yield decoder.decode(file.read(int.from_bytes(head, "little")))


def _next_files(entries: Iterator[SnapshotEntry], count: int = 256) -> list[SnapshotEntry]:
    files = []
    for entry in entries:
        if entry.is_file:
            files.append(entry)
            if len(files) == count:
                break
    return files
