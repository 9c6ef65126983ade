"""Share seals through an origin: push the list of one, pull one that was pushed, and list them.

A pull makes a seal of this node from the list: each object must still have the version that was sealed, and each file
the checksum. Ids of cache files and the image are this node's own, so an origin has no say in them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from array import array
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, BinaryIO

import msgspec

from headrace.base.cache_names import LAYOUT
from headrace.base.clock import monotonic_s
from headrace.base.errors import (
    HeadraceError,
    NotADirectoryPathError,
    OriginDeniedError,
    OriginError,
    PathNotFoundError,
    UsageError,
    VersionChangedError,
)
from headrace.base.model import Entry, Kind
from headrace.base.namespace_path import join, split
from headrace.base.single_flight import SingleFlight
from headrace.jobs.missing_files import is_sealed_version, sealed_version
from headrace.jobs.origin_seals import OriginSeals
from headrace.jobs.progress import JobProgress
from headrace.jobs.seal import Sealing, begin_to_leave, rows_of, write_row
from headrace.namespace.mounts import Mount
from headrace.namespace.namespace import Namespace
from headrace.seal.catalogue import Catalogue, Draft, SealId, SealRecord, unpack_list
from headrace.seal.erofs import ImageEntry
from headrace.seal.shared import (
    SharedRecord,
    check_packed,
    decode_record,
    measure_list,
    read_packed,
    unpack_shared,
)
from headrace.seal.shared_lists import SharedLists
from headrace.seal.snapshot import SnapshotEntry
from headrace.seal.stored_image import drop_older_images, image_entry
from headrace.seal.writer import write_image
from headrace.store.store import Store
from headrace.wire.seal_messages import SealOpened, SealRow

log = logging.getLogger(__name__)

ENTRIES_AT_ONCE = 256
KNOWN_S = 30.0
KNOWN_MAX = 1000


class SharedSeals:
    """The seals at the origins of this node's mounts."""

    def __init__(self, namespace: Namespace, store: Store, sealing: Sealing, catalogue: Catalogue) -> None:
        self._namespace = namespace
        self._store = store
        self._sealing = sealing
        self._catalogue = catalogue
        self._lists = SharedLists(catalogue)
        self._opened: SingleFlight[tuple[SealId, str], SealOpened] = SingleFlight()
        self._unpacked: SingleFlight[str, None] = SingleFlight()
        self._known: dict[SealId, tuple[float, SealOpened]] = {}
        """The seals of origins that were opened recently, each with the time until when its record is believed."""

    async def push(self, seal: SealId, progress: JobProgress) -> None:
        """Put the list of a seal to the origin of its directory, where it stays as it is. PathExistsError if the origin
        has another seal of that name; UsageError if several mounts have the files."""
        record = await self._sealing.in_thread(self._catalogue.record, seal)
        if record.is_lazy:
            raise UsageError(
                f"seal push {seal}",
                why=f"{record.missing} of its files were not cached, so their checksums are unknown",
                hint=f"run `headrace seal complete {seal}` first",
            )
        place = self._namespace.tree.mounts.find(record.path)
        if place is None or self._namespace.tree.mounts.below(record.path):
            raise UsageError(
                f"seal push {seal}",
                why=f"several mounts have the files below {record.path}",
                hint="seal directories below one mount each",
            )
        mount, key = place
        progress.files_total, progress.bytes_total, progress.listing = record.files, record.size_bytes, False
        with self._catalogue.open_list(record) as file:
            shared = await self._sealing.in_thread(_shared_record, record, key, file)
            await OriginSeals(mount).put(shared, file)
        progress.files_done, progress.bytes_done = record.files, record.size_bytes

    async def rows(self, path: str) -> list[SealRow]:
        """Return the seals at the origins. path: of the mount that is asked; "" for all mounts. OriginError,
        PathNotFoundError."""
        rows = [
            _row(record, _path_of(mount, record))
            for mount in self._mounts(path)
            async for record in OriginSeals(mount).records()
        ]
        return sorted(rows, key=lambda row: (SealId.parse(row.seal), row.path))

    async def own_rows(self) -> list[SealRow]:
        """Return the seals of this node, without damaged ones."""
        return await self._sealing.in_thread(self._own_rows)

    def _own_rows(self) -> list[SealRow]:
        rows = []
        for seal in self._catalogue.seals():
            try:
                record = self._catalogue.record(seal)
            except HeadraceError as error:
                log.warning("a damaged seal is not listed seal=%s error=%s", seal, error)
                continue
            rows.append(_row(record, record.path))
        return rows

    async def open(self, seal: SealId, known_id: str = "") -> SealOpened:
        """Return where the list of a seal lies on this host, unpacked: of this node's own seal, or fetched from an
        origin and checked. known_id: of the list that the caller has mapped, which need not be there.
        PathNotFoundError, InvalidImageError, NoSpaceError, UsageError, OriginError."""
        try:
            record = await self._sealing.in_thread(self._catalogue.record, seal)
        except PathNotFoundError:
            return await self._opened.run((seal, known_id), lambda: self._open_at_origin(seal, known_id))
        while record.id != known_id and not self._lists.has(record.id):
            before = record
            try:
                await self._unpacked.run(record.id, partial(self._unpack_own, record))
            except PathNotFoundError:  # the seal is removed, or a lazy one was renewed
                record = await self._sealing.in_thread(self._catalogue.record, seal)
                if record == before:
                    raise
        ids_path = self._catalogue.path(seal, record.file_name("ids"))
        return SealOpened(record.path, record.id, self._lists.path(record.id), ids_path)

    async def _unpack_own(self, record: SealRecord) -> None:
        with self._lists.create(record.id) as out:
            await self._sealing.in_thread(unpack_list, self._catalogue, record, out)

    async def _open_at_origin(self, seal: SealId, known_id: str) -> SealOpened:
        known = self._known.get(seal)
        if known is None or monotonic_s() >= known[0] or not self._has_list(known[1].id, known_id):
            mount, record = await self.find(seal, "")
            if not self._has_list(record.id, known_id):
                await self._unpacked.run(record.id, lambda: self._fetch_and_unpack(mount, record))
            opened = SealOpened(_path_of(mount, record), record.id, self._lists.path(record.id), "")
            known = monotonic_s() + KNOWN_S, opened
            self._known[seal] = known
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
        return known[1]

    def _has_list(self, id: str, known_id: str) -> bool:
        return id == known_id or self._lists.has(id)

    async def _fetch_and_unpack(self, mount: Mount, record: SharedRecord) -> None:
        self._lists.check_room(record.packed_bytes + record.list_bytes)
        with self._lists.create(record.id) as out, tempfile.TemporaryFile(dir=self._lists.folder) as packed:
            await OriginSeals(mount).fetch_list(record, packed)
            await self._sealing.in_thread(unpack_shared, packed, record, out)

    async def pull(self, seal: SealId, path: str, progress: JobProgress) -> None:
        """Make a seal of this node from one at an origin. path: as for `rows`. Files that have changed since, or are
        gone, are in progress, and then there is no seal. PathNotFoundError, PathExistsError, InvalidImageError,
        NoSpaceError, UsageError, OriginError."""
        mount, shared = await self.find(seal, path)
        top = os.fsencode(_path_of(mount, shared))
        if hint := self._sealing.how_to_protect(top):
            why = "files of its directory can be written on this node"
            raise UsageError(f"seal pull {seal}", why=why, hint=hint)
        with self._catalogue.draft(seal) as draft:
            kept = self._store.sealed.begin(str(seal))
            try:
                with draft.create("list") as out:
                    await OriginSeals(mount).fetch_list(shared, out)
                    await self._sealing.in_thread(check_packed, out, shared)
                await self._resolve_files(draft, shared, top, progress)
                needed = await self._sealing.in_thread(self._sealing.keep_cached, draft, kept, progress)
                await self._sealing.in_thread(self._sealing.check_room, needed, os.fsdecode(top))
                await self._sealing.in_thread(begin_to_leave, self._store, draft)
                if not progress.failed_files:
                    await self._sealing.load_missing(draft, progress)
                if not progress.failed_files:
                    await self._sealing.in_thread(self._publish, draft, shared, os.fsdecode(top), progress)
            finally:
                self._store.sealed.end(str(seal))

    async def find(self, seal: SealId, path: str) -> tuple[Mount, SharedRecord]:
        """Return the mount whose origin has a seal, and its record. PathNotFoundError; UsageError if the origins of
        several mounts have different ones."""
        rows: list[tuple[Mount, SharedRecord]] = []
        failure: OriginError | None = None
        for mount in self._mounts(path):
            try:
                rows.append((mount, await OriginSeals(mount).record(seal)))
            except (PathNotFoundError, OriginDeniedError):
                continue
            except OriginError as error:
                failure = error  # another origin may have it
        if not rows and failure is not None:
            raise failure
        if not rows:
            raise PathNotFoundError(
                f"seal {seal}",
                why="no origin of this node has such a seal",
                hint="see `headrace seal list --origin`",
            )
        if len({_path_of(mount, record) for mount, record in rows}) > 1:
            raise UsageError(
                f"seal {seal}",
                why="several origins have a seal of that name",
                hint=f"name the mount: {', '.join(mount.path for mount, _ in rows)}",
            )
        return rows[-1]

    def _mounts(self, path: str) -> list[Mount]:
        if not path:
            return self._namespace.tree.mounts.all()
        place = self._namespace.tree.mounts.find(path)
        if place is None:
            raise PathNotFoundError(path, why="no mount of this node answers for it")
        return [place[0]]

    # ------------------------------------------------------------ the steps of pull

    async def _resolve_files(
        self, draft: Draft, shared: SharedRecord, top: bytes, progress: JobProgress
    ) -> None:
        """Write the entries of the listed files to the draft. Files without an entry of the sealed version are in
        progress."""
        encoder, refreshed = msgspec.msgpack.Encoder(), set[bytes]()
        with draft.create("rows") as out:
            async for entry in self._listed_files(draft, shared):
                progress.files_total += 1
                progress.bytes_total += entry.size_bytes
                try:
                    present = await self._entry(join(top, entry.path), entry, refreshed)
                except VersionChangedError as error:
                    progress.add_failure(os.fsdecode(entry.path), error.why)
                else:
                    write_row(out, encoder.encode((entry.path, present)))
        progress.listing = False

    async def _listed_files(self, draft: Draft, shared: SharedRecord) -> AsyncIterator[SnapshotEntry]:
        with draft.open("list") as file:
            files = (entry for entry in read_packed(file, shared) if entry.is_file)
            while batch := await self._sealing.in_thread(_take, files):
                for entry in batch:
                    yield entry
                await asyncio.sleep(0)

    async def _entry(self, path: bytes, sealed: SnapshotEntry, refreshed: set[bytes]) -> Entry:
        """Return the entry of a file if it has the sealed version. VersionChangedError if it has not, also by a listing
        that is made now. refreshed: the directories that were listed anew."""
        folder = split(path)[0]
        while True:
            present = await self._present(path)
            if (
                present is not None
                and present.kind is Kind.FILE
                and is_sealed_version(sealed, present.version)
            ):
                return present
            if folder in refreshed:
                raise changed_since(path, sealed, present)
            refreshed.add(folder)
            await self._namespace.listings.refresh_listed(folder)

    async def _present(self, path: bytes) -> Entry | None:
        try:
            return await self._namespace.resolver.resolve(path)
        except (PathNotFoundError, NotADirectoryPathError):
            return None

    def _publish(self, draft: Draft, shared: SharedRecord, top: str, progress: JobProgress) -> None:
        ids: array[int] = array("Q")
        with draft.open("list") as file, draft.create("image") as image:
            entries = self._image_entries(draft, read_packed(file, shared), ids)
            digest = write_image(entries, image.fileno())
        with draft.create("ids") as out:
            out.write(b"".join(id.to_bytes(8, "little") for id in ids))
        for name in ("rows", "missing"):
            os.unlink(os.path.join(draft.folder, name))
        self._store.sync()
        record = SealRecord(
            *(shared.name, shared.version, top, shared.id, digest),
            files=shared.files,
            size_bytes=shared.size_bytes,
            created_s=shared.created_s,
            layout=LAYOUT,
        )
        progress.finish(self._catalogue.publish, draft, record)
        self._store.sealed.add(ids)
        drop_older_images(self._catalogue, record)

    def _image_entries(
        self, draft: Draft, entries: Iterator[SnapshotEntry], ids: array[int]
    ) -> Iterator[ImageEntry]:
        files = rows_of(draft, "rows")
        for entry in entries:
            id = 0
            if entry.is_file:
                _, present = next(files)
                if self._sealing.checksum(os.fsdecode(entry.path), present) != entry.checksum:
                    raise VersionChangedError(
                        os.fsdecode(entry.path), why="its bytes are not those that were sealed"
                    )
                id = present.id
                ids.append(id)
            yield image_entry(entry, id)


def changed_since(path: bytes, sealed: SnapshotEntry, present: Entry | None) -> VersionChangedError:
    """Return the error for a file whose sealed version no cache and no origin has."""
    if present is None:
        return VersionChangedError(
            os.fsdecode(path), why="the object is gone from its origin since it was sealed"
        )
    return VersionChangedError(
        os.fsdecode(path),
        why=f"the object has changed at its origin since it was sealed: version {present.version.text}, sealed "
        f"{sealed_version(sealed).text}",
    )


def _row(record: SealRecord | SharedRecord, path: str) -> SealRow:
    return SealRow(str(record.seal), record.id, path, record.files, record.size_bytes, record.created_s)


def _path_of(mount: Mount, record: SharedRecord) -> str:
    """Return the path in the namespace of the directory that was sealed."""
    return os.fsdecode(join(os.fsencode(mount.path), os.fsencode(record.path))) if record.path else mount.path


def _shared_record(record: SealRecord, key: str, list_file: BinaryIO) -> SharedRecord:
    """Return what the origin gets of a seal, after checking its list. InvalidImageError."""
    list_bytes = measure_list(list_file, record.id)
    shared = SharedRecord(
        *(1, record.name, record.version, key, record.id),
        files=record.files,
        size_bytes=record.size_bytes,
        created_s=record.created_s,
        list_bytes=list_bytes,
        packed_bytes=os.fstat(list_file.fileno()).st_size,
    )
    return decode_record(msgspec.json.encode(shared), record.seal)


def _take(files: Iterator[Any], count: int = ENTRIES_AT_ONCE) -> list[Any]:
    return [entry for _, entry in zip(range(count), files, strict=False)]
