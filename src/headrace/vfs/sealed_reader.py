"""Look up and read paths of the origins and of seals through a node of this host, for commands."""

from __future__ import annotations

import os
from collections.abc import Iterator

from headrace.base.errors import IsADirectoryPathError, NotADirectoryPathError, PathNotFoundError
from headrace.base.model import Entry, FileId, Kind
from headrace.client.node_client import NodeClient
from headrace.client.path_reader import READ_STEP_BYTES, PathReader
from headrace.vfs.sealed_paths import NO_ID, SealedEntry, SealedPaths
from headrace.vfs.streams import Content


class SealedReader(PathReader):
    """Reads `/NAME@VERSION/…`, too. client: owned by this object. Thread-safe."""

    def __init__(self, client: NodeClient) -> None:
        super().__init__(client)
        self._sealed = SealedPaths(client, self._lower, lambda _: None)

    def _lower(self, path: bytes) -> Entry | None:
        try:
            return super().resolve(path)
        except (PathNotFoundError, NotADirectoryPathError):
            return None

    def resolve(self, path: bytes) -> Entry:
        row = self._sealed.find(path)
        if row is None:
            return super().resolve(path)
        if not isinstance(row[1], SealedEntry):
            raise PathNotFoundError(os.fsdecode(path), why="the seal has no such name")
        return row[1]

    def file_state(self, id: FileId) -> dict[str, str]:
        return {"cached": "no", "socket": ""} if id == NO_ID else super().file_state(id)

    def list_path(self, path: bytes) -> Iterator[Entry]:
        entry = self.resolve(path)
        if not isinstance(entry, SealedEntry):
            yield from super().list_path(path)
        elif entry.kind is Kind.FILE:
            yield entry
        else:
            for _, child in self._sealed.children(path, b"") or ():
                assert isinstance(child, Entry)
                yield child

    def read(self, path: bytes, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
        entry = self.resolve(path)
        if not isinstance(entry, SealedEntry):
            yield from super().read(path, start, end)
            return
        if entry.kind is Kind.DIRECTORY:
            raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
        content = self._sealed.content(path, entry, self._opened)
        stop = content.size_bytes if end is None else min(end, content.size_bytes)
        try:
            while start < stop:
                step = min(READ_STEP_BYTES, stop - start)
                yield memoryview(content.read(start, start + step))
                start += step
        finally:
            content.close()

    def _opened(self, entry: Entry) -> Content:
        return Content(entry.version.size_bytes, file=self._client.open(entry.id))
