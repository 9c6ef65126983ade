"""Look names up in the index by their paths, without any request to an origin. All calls run on the node's loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

from headrace.base import boot_clock
from headrace.base.errors import PathNotFoundError, StaleIdError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind
from headrace.base.namespace_path import join, names_of
from headrace.namespace.mounts import Mount, MountTable
from headrace.store.index import Index

NAMES_A_BATCH = 1000


class NameTree:
    """The names in the index, and the mounts that answer for them."""

    def __init__(self, index: Index, mounts: MountTable) -> None:
        self.index = index
        self.mounts = mounts

    def entry_at(self, path: bytes) -> Entry | None:
        """Return the entry that the index has at a path."""
        entry = self.index.entry(ROOT_ID)
        for name in names_of(path):
            entry = None if entry is None else self.index.lookup(entry.id, name)
        return entry

    def directory_at(self, path: bytes) -> FileId | None:
        """Return the id of a directory; None if the index has no directory at the path."""
        entry = self.entry_at(path)
        return entry.id if entry is not None and entry.kind is Kind.DIRECTORY else None

    def nearest_directory(self, path: bytes) -> bytes:
        """Return the path, or the nearest one above it that is a directory of the index. It costs a lookup for each
        name that is there, however deep the path is."""
        entry, end = self.index.entry(ROOT_ID), 0
        for name in names_of(path):
            entry = None if entry is None else self.index.lookup(entry.id, name)
            if entry is None or entry.kind is not Kind.DIRECTORY:
                break
            end += 1 + len(name)
        return path[:end] or b"/"

    def locate(self, id: FileId) -> tuple[Mount, str, Entry]:
        """Return the mount, the key at its origin, and the entry of a file. Raise StaleIdError if the id is no longer
        valid."""
        entry, path = self.index.entry(id), self.index.path_of(id)
        location = self.mounts.find(path) if path is not None else None
        if entry is None or location is None:
            raise StaleIdError(
                f"file {id:x}", why="the file was replaced or removed at its origin", hint="open it again"
            )
        return location[0], location[1], entry

    def origin_of(self, directory: FileId) -> tuple[bytes, Mount | None, str]:
        """Return the path of a directory, its mount, and the key at its origin; above all mounts None and "". Raise
        StaleIdError if the id is no longer valid."""
        path = self.index.path_of(directory)
        if path is None:
            raise StaleIdError(f"directory {directory:x}", why="the directory was removed at its origin")
        location = self.mounts.find(path)
        return (path, location[0], location[1]) if location else (path, None, "")

    def check_mounted(self, path: bytes) -> None:
        """Raise PathNotFoundError if no mount answers for a path."""
        if self.mounts.find(path) is None:
            raise PathNotFoundError(os.fsdecode(path), why="no mount of this node answers for it")

    def make_directories(self, path: bytes) -> FileId:
        """Enter the missing directories of a path into the index. Return the id of the last one."""
        directory = ROOT_ID
        for name in names_of(path):
            directory = self.index.names.ensure_directory(directory, name)
        return directory

    def is_fresh(self, directory: FileId) -> bool:
        """Return whether the index has a whole and valid listing of a directory."""
        return self.index.fresh_until_ns(directory) > boot_clock.now_ns()

    def is_listed(self, directory: FileId) -> bool:
        """Return whether the index has a listing of a directory, valid or not."""
        return self.index.fresh_until_ns(directory) != 0

    def paths_of(self, names: Iterable[tuple[FileId, bytes]]) -> Iterator[bytes]:
        """Yield the paths of names whose directories still exist."""
        directory_paths: dict[FileId, bytes | None] = {}
        for parent, name in names:
            if parent not in directory_paths:
                directory_paths[parent] = self.index.path_of(parent)
            directory_path = directory_paths[parent]
            if directory_path is not None:
                yield join(directory_path, name)

    async def directories_below(self, path: bytes) -> AsyncIterator[bytes]:
        """Yield the directories of the index at and below a path. Let other tasks run in between."""
        top, count = self.directory_at(path), 0
        pending = [] if top is None else [(path, top)]
        while pending:
            directory_path, directory = pending.pop()
            yield directory_path
            for child in self.index.children(directory):
                count += 1
                if child.kind is Kind.DIRECTORY:
                    pending.append((join(directory_path, child.name), child.id))
                if count % NAMES_A_BATCH == 0:
                    await asyncio.sleep(0)

    async def files_below(self, path: bytes) -> AsyncIterator[Sequence[FileId]]:
        """Yield the ids of the files below a path, from the index, in batches. Let other tasks run in between."""
        top = self.directory_at(path)
        pending = [] if top is None else [top]
        while pending:
            ids: list[FileId] = []
            for child in self.index.children(pending.pop()):
                (pending if child.kind is Kind.DIRECTORY else ids).append(child.id)
                if len(ids) == NAMES_A_BATCH:
                    yield ids
                    ids = []
            yield ids
            await asyncio.sleep(0)
