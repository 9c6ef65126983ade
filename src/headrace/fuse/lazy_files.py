"""Show the missing files of a lazy seal as a tree of names by id, with the bytes of the sealed versions or none.

    /lazy/000000001234    the file that has this id in the seal

A session serves it (`lazy_main.py`), and the kernel asks it for the files that the cache lacked when the image was
written. All names are fixed, so the kernel may keep them. No directory can be listed: only the image has the names.
"""

from __future__ import annotations

import logging
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from headrace.base.cache_names import LAZY_DIRECTORY, lazy_id
from headrace.base.cancel import Cancel
from headrace.base.errors import CancelledByUserError, HeadraceError, OriginError, PathNotFoundError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.client.file import OpenFile
from headrace.seal.snapshot import SnapshotEntry
from headrace.wire.messages import Invalidated, Written

log = logging.getLogger(__name__)

DIRECTORY_ID = FileId((1 << 47) - 1)
"""Id of the only directory. No file has it, because a node counts ids up from 1."""
NAME_TTL_S = 3600.0
_DIRECTORIES = {
    ROOT_ID: Entry(ROOT_ID, ROOT_ID, b"", Kind.DIRECTORY, Version(0, 0)),
    DIRECTORY_ID: Entry(DIRECTORY_ID, ROOT_ID, LAZY_DIRECTORY, Kind.DIRECTORY, Version(0, 0)),
}


class LazyFile(NamedTuple):
    """Describes a missing file. path: its path in the namespace. mtime_ns: not before 1970, as content lists have
    it."""

    id: FileId
    path: bytes
    size_bytes: int
    mtime_ns: int
    token: str

    def is_of(self, version: Version) -> bool:
        """Return whether a version has the sealed bytes."""
        sealed = Version(self.size_bytes, self.mtime_ns, self.token)
        return sealed == Version(version.size_bytes, max(0, version.mtime_ns), version.token)


class LazyFiles:
    """Finds the missing files of a seal by id. Each takes its path, its token and some 40 bytes of memory."""

    def __init__(self, top: str, files: Iterable[tuple[SnapshotEntry, int]]) -> None:
        """Store the missing files. files: all files of the seal with their ids. top: the seal's path in the
        namespace."""
        self._top = os.fsencode(top.rstrip("/"))
        self._texts = bytearray()
        rows: list[tuple[int, int, int, int]] = []
        for entry, id in files:
            if entry.is_missing:
                rows.append((id, len(self._texts), entry.size_bytes, entry.mtime_ns))
                self._texts += entry.path + b"\0" + entry.token.encode() + b"\0"
        rows.sort()
        columns = [*zip(*rows, strict=True)] or [()] * 4
        self._ids, self._offsets, self._sizes, self._times = (array("q", column) for column in columns)

    def __len__(self) -> int:
        return len(self._ids)

    def get(self, id: int) -> LazyFile | None:
        index = bisect_left(self._ids, id)
        if index == len(self._ids) or self._ids[index] != id:
            return None
        begin = self._offsets[index]
        middle = self._texts.index(b"\0", begin)
        path = self._top + b"/" + self._texts[begin:middle]
        token = self._texts[middle + 1 : self._texts.index(b"\0", middle + 1)].decode()
        return LazyFile(FileId(id), path, self._sizes[index], self._times[index], token)


class CacheClient(Protocol):
    """Reads the cache as the layer needs it: `client.node_client.NodeClient`, or an in-memory one in tests."""

    @property
    def generation(self) -> int: ...
    def entry(self, id: FileId) -> Entry | None: ...
    def cached_version(self, id: FileId) -> Version | None: ...
    def resolve(self, path: bytes) -> Entry: ...
    def complete_path(self, id: FileId) -> str | None: ...
    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenFile: ...
    def touch(self, id: FileId, pid: int = 0) -> None: ...
    def acknowledge(self, receipt: int) -> None: ...
    def subscribe(
        self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None] = lambda: None
    ) -> None: ...


class LazyClient:
    """Serves a session the missing files as names by id, and their bytes through the client of the node. Thread-safe.

    After the index of the node was lost, a file has another id there. It is found by its path, and keeps its sealed id
    in this tree.
    """

    def __init__(self, client: CacheClient, files: LazyFiles) -> None:
        self._client = client
        self._files = files
        self._moved: dict[FileId, FileId] = {}

    @property
    def generation(self) -> int:
        return self._client.generation

    # ------------------------------------------------------------ names

    def lookup_fast(self, parent: FileId, name: bytes) -> Entry | None:
        if parent == ROOT_ID:
            return _DIRECTORIES[DIRECTORY_ID] if name == LAZY_DIRECTORY else None
        id = lazy_id(name) if parent == DIRECTORY_ID else None
        return None if id is None else self._file_entry(FileId(id))

    def lookup(self, parent: FileId, name: bytes, cancel: Cancel | None = None) -> Entry | None:
        return self.lookup_fast(parent, name)

    def lookup_stale(self, parent: FileId, name: bytes) -> Entry | None:
        return self.lookup_fast(parent, name)

    def entry(self, id: FileId) -> Entry | None:
        return _DIRECTORIES.get(id) or self._file_entry(id)

    def _file_entry(self, id: FileId) -> Entry | None:
        file = self._files.get(id)
        if file is None:
            return None
        version = Version(file.size_bytes, file.mtime_ns)
        return Entry(id, DIRECTORY_ID, b"%012x" % id, Kind.FILE, version)

    def name_ttl_s(self, parent: FileId) -> float:
        return NAME_TTL_S

    def listing_fresh(self, directory: FileId) -> bool:
        return True

    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None:
        return None

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]:
        return iter(())

    # ------------------------------------------------------------ contents

    def complete_path(self, id: FileId) -> str | None:
        here = self._moved.get(id, id)
        path = self._client.complete_path(here)  # first, because it is mostly None when this is called
        if path is None:
            return None
        file = self._files.get(id)
        return path if file is not None and self._has(file, here) else None

    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenFile:
        """Open a file at its sealed version. Raises PathNotFoundError for an id that is not missing in the seal, and
        OriginError if neither the cache nor the origin has the sealed bytes. Blocks on the node."""
        file = self._files.get(id)
        if file is None:
            raise PathNotFoundError(f"file {id:x} of a lazy seal")
        try:
            return self._open(file, cancel)
        except CancelledByUserError:
            raise
        except HeadraceError as error:
            path = os.fsdecode(file.path)
            log.warning("a file of a lazy seal can't be read path=%s reason=%s", path, error)
            raise OriginError(f"sealed file {path}", why=str(error)) from error

    def _open(self, file: LazyFile, cancel: Cancel | None) -> OpenFile:
        here = self._moved.get(file.id, file.id)
        known = self._client.entry(here)
        if (known is None or not file.is_of(known.version)) and not self._has(file, here):
            current = self._client.resolve(file.path)
            if not file.is_of(current.version):
                raise OriginError(
                    os.fsdecode(file.path),
                    why="it changed at its origin after it was sealed, and the cache lacks the sealed bytes",
                    hint="seal the directory again",
                )
            here = self._moved[file.id] = current.id
        opened = self._client.open(here, cancel)
        if self._has(file, here):
            return opened
        opened.close()
        raise OriginError(os.fsdecode(file.path), why="it changed at its origin while it was opened")

    def _has(self, file: LazyFile, id: FileId) -> bool:
        """Return whether the cache file of an id has, or gets, the sealed bytes."""
        version = self._client.cached_version(id)
        return version is not None and file.is_of(version)

    def touch(self, id: FileId, pid: int = 0) -> None:
        self._client.touch(self._moved.get(id, id), pid)

    # ------------------------------------------------------------ events and state

    def acknowledge(self, receipt: int) -> None:
        self._client.acknowledge(receipt)

    def subscribe(
        self, on_event: Callable[[Any], None], *, on_subscribed: Callable[[], None] = lambda: None
    ) -> None:
        """Pass on the events of files. A change of a name in the namespace changes no name of this tree."""

        def pass_on(event: object) -> None:
            if not isinstance(event, Invalidated | Written):
                on_event(event)

        self._client.subscribe(pass_on, on_subscribed=on_subscribed)

    def file_state(self, id: FileId) -> dict[str, str]:
        return {}

    def statistics(self) -> tuple[int, int, int]:
        """Return zeros: the kernel requests statistics when it mounts, and must not wait for the node."""
        return 0, 0, 0
