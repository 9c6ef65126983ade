"""Walk the files of a seal by its path, `/NAME@VERSION/…`, so that a job loads exactly that version of a data set.

A directory of the namespace with such a name comes first, as for readers.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

from headrace.base.decoding import msgpack_decoder
from headrace.base.errors import HeadraceError, NotADirectoryPathError, PathNotFoundError, UsageError
from headrace.base.model import Entry, FileId, Kind
from headrace.base.namespace_path import join, names_of
from headrace.jobs.missing_files import current_id, is_sealed_version, is_whole, sealed_version
from headrace.jobs.progress import JobProgress, count_verified
from headrace.jobs.sealed_checksum import SealedFileEntry
from headrace.jobs.sealed_objects import SealedObjects
from headrace.jobs.shared_seals import SharedSeals
from headrace.jobs.walk import NAMES_AT_ONCE, Failed
from headrace.namespace.namespace import Namespace
from headrace.seal.catalogue import SealId
from headrace.seal.snapshot import SnapshotEntry
from headrace.seal.unpacked_list import map_unpacked
from headrace.store.store import Store
from headrace.wire.seal_messages import SealOpened

_LENGTH_BYTES = 2


class SealedPath(NamedTuple):
    """A path of a seal. below: its part below the sealed directory. content, offsets: of the list. ids: of the cache
    files that this node sealed, in the order of the list; none if it did not seal it."""

    seal: SealId
    opened: SealOpened
    below: bytes
    content: mmap.mmap
    offsets: Sequence[int]
    ids: array[int]

    @property
    def data(self) -> dict[str, str]:
        """Return the id of the content list by the name of the seal."""
        return {str(self.seal): self.opened.id}


class SealedWalk:
    """Finds seals by path, and walks their files."""

    def __init__(self, namespace: Namespace, store: Store, seals: SharedSeals) -> None:
        self._objects = SealedObjects(namespace.tree.mounts)
        self._namespace = namespace
        self._store = store
        self._seals = seals

    async def find(self, path: bytes) -> SealedPath | None:
        """Return the seal of a path; None if its first name is no seal. Raises InvalidImageError and OriginError."""
        names = names_of(path)
        try:
            seal = SealId.parse(names[0].decode() if names else "")
        except (UsageError, UnicodeDecodeError):
            return None
        if await self._present(b"/" + names[0]) is not None:
            return None
        for is_last in (False, True):
            try:
                opened = await self._seals.open(seal)
                return SealedPath(seal, opened, b"/".join(names[1:]), *_mapped(opened))
            except PathNotFoundError:
                return None
            except FileNotFoundError:  # the seal was renewed meanwhile
                if is_last:
                    raise
        raise AssertionError

    async def files(self, sealed: SealedPath, failed: Failed) -> AsyncIterator[tuple[bytes, Entry]]:
        """Yield each file with its path in the namespace. Report a file whose sealed version neither the cache nor the
        origin has to `failed`, and a path that the seal has not."""
        top, has_path, count = os.fsencode(sealed.opened.path), False, 0
        for entry, id in _entries(sealed):
            count += 1
            if count % NAMES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not _is_at_or_below(entry.path, sealed.below):
                continue
            has_path = True
            if not entry.is_file:
                continue
            path = join(top, entry.path)
            try:
                yield path, await self._entry(path, entry, sealed.opened.path, id)
            except HeadraceError as error:
                failed(os.fsdecode(path), str(error))
        if not has_path:
            failed(f"/{sealed.seal}/{os.fsdecode(sealed.below)}", "the seal has no such path")

    async def verify(self, seal: SealId, progress: JobProgress) -> None:
        """Ask the origin of a seal that this node has not whether it still has the sealed version of each file. No
        bytes are read. Raises PathNotFoundError, InvalidImageError and OriginError."""
        opened = await self._seals.open(seal)
        rows = _entries(SealedPath(seal, opened, b"", *_mapped(opened)))
        files = (entry for entry, _ in rows if entry.is_file)
        while batch := list(itertools.islice(files, NAMES_AT_ONCE)):
            progress.files_total += len(batch)
            progress.bytes_total += sum(entry.size_bytes for entry in batch)
            for entry, why in zip(batch, await self._objects.faults(opened.path, batch), strict=True):
                count_verified(progress, entry, why)
        progress.listing = False

    async def _entry(
        self, path: bytes, sealed: SnapshotEntry, top: str, id: FileId | None
    ) -> SealedFileEntry:
        """Return the entry of a file in its sealed version. Raises VersionChangedError and OriginError."""
        version = sealed_version(sealed)
        own_id = None if id is None else current_id(self._store.index, top, sealed, id)
        if own_id is None or not is_whole(self._store, own_id):
            present = await self._present(path)
            if (
                present is None
                or not is_sealed_version(sealed, present.version)
                or present.kind is not Kind.FILE
            ):
                present = await self._namespace.resolver.find_version(path, version)
            own_id, version = present.id, present.version
        name = path.rpartition(b"/")[2]
        return SealedFileEntry(
            *(own_id, FileId(0), name, Kind.FILE, version), sealed_checksum=sealed.checksum
        )

    async def _present(self, path: bytes) -> Entry | None:
        try:
            return await self._namespace.resolver.resolve(path)
        except (PathNotFoundError, NotADirectoryPathError):
            return None


def _mapped(opened: SealOpened) -> tuple[mmap.mmap, Sequence[int], array[int]]:
    ids: array[int] = array("Q")
    if opened.ids_path:
        with open(opened.ids_path, "rb") as file:
            ids.frombytes(file.read())
    return *map_unpacked(opened.list_path), ids


def _entries(sealed: SealedPath) -> Iterator[tuple[SnapshotEntry, FileId | None]]:
    """Yield the entries of a seal, files with the id of the cache file that this node sealed, if it did."""
    decoder, content, number = msgpack_decoder(SnapshotEntry), sealed.content, 0
    for offset in sealed.offsets:
        start = offset + _LENGTH_BYTES
        entry = decoder.decode(content[start : start + int.from_bytes(content[offset:start], "little")])
        yield entry, FileId(sealed.ids[number]) if entry.is_file and number < len(sealed.ids) else None
        number += entry.is_file


def _is_at_or_below(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")
