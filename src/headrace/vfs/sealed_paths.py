"""Resolve paths like `/imagenet@3/train/0.tar`: the files of a seal, each in exactly the sealed version.

Names and attributes come from the content list. Bytes come from the cache file that the namespace has for the sealed
version, which the node fetches if its origin still has that version. Else they come from the cache file that this node
sealed. A file that neither has is an error, and never other bytes (`sealed_bytes.py`).
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from headrace.base.errors import HeadraceError, NotADirectoryPathError, PathNotFoundError, VersionChangedError
from headrace.base.model import ROOT_ID, Attributes, Entry, FileId, Kind, Version
from headrace.base.namespace_path import join
from headrace.client.node_client import NodeClient
from headrace.overlay.merged_view import FileStat
from headrace.overlay.upper import Hidden
from headrace.seal.snapshot import SnapshotEntry
from headrace.vfs.sealed_bytes import SealedBytes
from headrace.vfs.streams import Content
from headrace.wire.messages import LookupVersion, Resolved
from headrace.wire.seal_messages import SealOpen, SealOpened

if TYPE_CHECKING:
    from headrace.vfs.sealed_list import SealedList

log = logging.getLogger(__name__)

Found = TypeVar("Found")

KNOWN_S = 1.0
"""Seconds for which the result of a lookup of a seal counts, found or not, like the directories of origins."""
KNOWN_MAX = 256
"""Anybody may ask for any name."""
LISTS_MAX = 16
"""Lists that a process has mapped."""
NO_ID = FileId(0)
"""The id of what has no cache file here: a directory of a seal, or a file whose sealed version is lost."""
_SEAL = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}@[1-9][0-9]{0,8}")


class SealedEntry(Entry, frozen=True, gc=False):
    """Describes a name of a seal. source: for a file whose sealed version neither the index nor a seal of this node
    has, its path in the namespace; else b"". checksum: of its bytes, as the content list has it."""

    source: bytes = b""
    checksum: int | None = None


class _OpenSeal(msgspec.Struct, frozen=True):
    """A seal that was opened. top: the path of the namespace of the directory that was sealed."""

    top: bytes
    id: str
    list: SealedList
    ids_path: str

    def cached_id(self, position: int) -> FileId | None:
        """Return the id of the cache file that this node sealed."""
        if not self.ids_path:
            return None
        ids: array[int] = array("Q")
        number = self.list.file_number(position)
        try:
            with open(self.ids_path, "rb") as file:
                file.seek(number * 8)
                ids.frombytes(file.read(8))
        except (OSError, ValueError):
            return None  # the seal was removed meanwhile
        return FileId(ids[0]) if ids else None


class _Known(msgspec.Struct):
    """Holds what is known of a name until a time: its seal, or that there is none. opening: held by the thread that
    asks, so that an origin without an answer delays nobody who reads another seal. failure, failed_s: of the last
    request, if it failed."""

    until_s: float = 0.0
    seal: _OpenSeal | None = None
    opening: threading.Lock = msgspec.field(default_factory=threading.Lock)
    failure: HeadraceError | None = None
    failed_s: float = 0.0

    def look(self, open_now: Callable[[_OpenSeal | None], _OpenSeal | None]) -> _OpenSeal | None:
        """Return what is known; first ask again unless it is new. Calls that wait for one that fails do so with it, as
        each would wait as long again. open_now: called with what was known before."""
        asked_s = time.monotonic()
        with self.opening:
            if self.failure is not None and self.failed_s > asked_s:
                raise self.failure.copied()
            if time.monotonic() >= self.until_s:  # no other thread has asked meanwhile
                try:
                    self.seal = open_now(self.seal)
                except HeadraceError as error:
                    self.failure, self.failed_s = error.copied(), time.monotonic()
                    raise
                self.failure = None
                self.until_s = time.monotonic() + KNOWN_S
            return self.seal


class SealedPaths:
    """The seals of a node by path. lower, upper: return what the origins and the upper layer have at a path now.
    Thread-safe."""

    def __init__(
        self,
        client: NodeClient,
        lower: Callable[[bytes], Entry | None],
        upper: Callable[[bytes], os.stat_result | Hidden | None],
    ) -> None:
        self._client = client
        self._lower = lower
        self._upper = upper
        self._bytes = SealedBytes(lambda id: client.local.reader(id, sums=True))
        self._known: dict[bytes, _Known] = {}
        self._adding = threading.Lock()
        alive = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _reset_after_fork(alive()))

    def reset_after_fork(self) -> None:
        """Reset a child after a fork: a thread that the child does not have may hold a lock."""
        self._adding = threading.Lock()
        self._known = {name: _Known(known.until_s, known.seal) for name, known in self._known.items()}

    def find(self, path: bytes) -> tuple[bytes, FileStat | None] | None:
        """Return the plain path and what the seal has there, or None; None instead of both if the first name is no
        seal. Raises NotADirectoryPathError, InvalidImageError or OriginError."""
        place = self._place(path)
        if place is None:
            return None
        seal, names = place
        full_path = b"/" + b"/".join([*names])
        position = seal.list.find(b"/".join(names[1:]))
        if position is not None:
            return full_path, self._entry(seal, position)
        for depth in range(len(names) - 1, 1, -1):
            above = seal.list.find(b"/".join(names[1:depth]))
            if above is not None:
                if seal.list.entry(above).is_file:
                    raise NotADirectoryPathError(os.fsdecode(path), why="a name above it is a file")
                break
        return full_path, None

    def owns(self, path: bytes) -> bool:
        """Return whether a path is in a seal, so that nothing can be written there."""
        return self._place(path) is not None

    def path_of_version(self, name: bytes, path: bytes) -> bytes | None:
        """Return the path in a seal of a plain path; None if there is no such seal, or it is of another directory.
        name: NAME@VERSION. Raises InvalidImageError or OriginError."""
        seal = self._open(name)
        if seal is None:
            return None
        top = seal.top.rstrip(b"/")
        if path != top and not path.startswith(top + b"/"):
            return None
        return b"/" + name + path[len(top) :]

    def plain_path(self, path: bytes) -> bytes:
        """Return the path in the namespace of a path of a seal; any other path as it is."""
        place = self._place(path)
        return path if place is None else join(place[0].top, b"/".join(place[1][1:]))

    def children(self, path: bytes, after: bytes) -> Iterator[tuple[bytes, FileStat]] | None:
        """Return the names of a directory of a seal; None if the first name is no seal. Raises PathNotFoundError or
        NotADirectoryPathError."""
        place = self._place(path)
        if place is None:
            return None
        seal, names = place
        position = seal.list.find(b"/".join(names[1:]))
        if position is None:
            raise PathNotFoundError(os.fsdecode(path), why="no such file or directory")
        if seal.list.entry(position).is_file:
            raise NotADirectoryPathError(os.fsdecode(path), why="it is not a directory")
        return ((name, _shown(seal.list.entry(child))) for name, child in seal.list.children(position, after))

    def _place(self, path: bytes) -> tuple[_OpenSeal, list[bytes]] | None:
        """Return the seal of a path, and the names of the path; None if the first name is no seal."""
        if b"@" not in path:
            return None
        names = [name for name in path.split(b"/") if name]
        if not names or not _SEAL.fullmatch(names[0]) or b"." in names or b".." in names:
            return None
        seal = self._open(names[0])
        return None if seal is None else (seal, names)

    def _open(self, name: bytes) -> _OpenSeal | None:
        known = self._known.get(name)
        if known is not None and time.monotonic() < known.until_s:
            return known.seal
        return (known or self._added(name)).look(
            lambda before: None if self._has_name(b"/" + name) else self._opened(name, before)
        )

    def _has_name(self, path: bytes) -> bool:
        """Return whether the namespace has a path at the top, which then is no seal's."""
        status = self._upper(path)
        return self._lower(path) is not None if status is None else not isinstance(status, Hidden)

    def _added(self, name: bytes) -> _Known:
        with self._adding:
            if len(self._known) >= KNOWN_MAX:
                others = (other for other, known in self._known.items() if known.seal is None)
                del self._known[next(others, next(iter(self._known)))]
            return self._known.setdefault(name, _Known())

    def _drop_old_lists(self) -> None:
        """Forget the oldest lists beyond LISTS_MAX: one that is mapped takes room also after the node removed it."""
        with self._adding:
            names = [name for name, known in self._known.items() if known.seal is not None]
            for name in names[: max(0, len(names) - LISTS_MAX + 1)]:
                del self._known[name]

    def _opened(self, name: bytes, before: _OpenSeal | None) -> _OpenSeal | None:
        try:
            return self._opened_now(name, before)
        except PathNotFoundError:
            return None
        except FileNotFoundError:  # the node wrote a new list of this seal, and removed that one
            return self._opened_now(name, before)

    def _opened_now(self, name: bytes, before: _OpenSeal | None) -> _OpenSeal:
        answer = self._client.ask(SealOpen(seal=name.decode(), known_id="" if before is None else before.id))
        assert isinstance(answer, SealOpened)
        top = os.fsencode(answer.path)
        if before is not None and (before.id, before.top, before.ids_path) == (
            answer.id,
            top,
            answer.ids_path,
        ):
            return before
        rows = before.list if before is not None and before.id == answer.id else None
        from headrace.vfs.sealed_list import SealedList  # few programs need it and its modules

        self._drop_old_lists()
        return _OpenSeal(top, answer.id, rows or SealedList(answer.list_path), answer.ids_path)

    def _entry(self, seal: _OpenSeal, position: int) -> SealedEntry:
        sealed = seal.list.entry(position)
        if not sealed.is_file:
            return _shown(sealed)
        source = join(seal.top, sealed.path)
        present = self._lower(source)
        if present is not None and present.kind is Kind.FILE and present.version == _version_of(sealed):
            return _shown(sealed, present.id)
        cached_id = seal.cached_id(position)
        if cached_id is not None and self._client.complete_path(cached_id) is not None:
            return _shown(sealed, cached_id)
        return _shown(sealed, source=source)

    def content(self, path: bytes, entry: SealedEntry, open_below: Callable[[Entry], Content]) -> Content:
        """Open a file of a seal. open_below: opens an entry of the origins. Raises VersionChangedError where no cache
        and no origin has its sealed bytes; the reason is in the log, too."""
        if not entry.version.size_bytes:
            return Content(0, fd=os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        present = _of_sealed_version(path, lambda: self.at_origin(entry) if entry.source else entry)
        if entry.checksum is None:
            return _of_sealed_version(path, lambda: open_below(present))
        return self._bytes.open(
            *(path, present, entry.checksum),
            lambda present: _of_sealed_version(path, lambda: open_below(present)),
        )

    def at_origin(self, entry: SealedEntry) -> Entry:
        """Return the entry of the sealed version, which the origin has though the index did not know.
        Raises VersionChangedError if it has another one."""
        version = entry.version
        answer = self._client.ask(
            LookupVersion(
                path=entry.source,
                size_bytes=version.size_bytes,
                mtime_ns=version.mtime_ns,
                token=version.token,
            )
        )
        assert isinstance(answer, Resolved)
        return msgspec.structs.replace(entry, id=FileId(answer.id), source=b"")


def _of_sealed_version(path: bytes, find: Callable[[], Found]) -> Found:
    """Return what is found of a file of a seal. Raises VersionChangedError with the reason, which is logged, too."""
    try:
        return find()
    except FileNotFoundError as error:  # the name has another id by now
        raise VersionChangedError(os.fsdecode(path), why=str(error)) from error
    except VersionChangedError as error:
        why = "the object has changed at its origin since it was sealed, or is gone, and no cache has it"
        log.error("a file of a seal can't be read path=%s error=%s", os.fsdecode(path), error)
        hint = "seal the directory again, as the next version"
        raise VersionChangedError(os.fsdecode(path), why=why, hint=hint) from error


def _reset_after_fork(paths: SealedPaths | None) -> None:
    if paths is not None:
        paths.reset_after_fork()


def _shown(sealed: SnapshotEntry, id: FileId = NO_ID, source: bytes = b"") -> SealedEntry:
    kind = Kind.FILE if sealed.is_file else Kind.DIRECTORY
    name = sealed.path.rpartition(b"/")[2]
    attributes = Attributes(sealed.mtime_ns, sealed.mode & 0o7777, sealed.uid, sealed.gid)
    version, checksum = _version_of(sealed), sealed.checksum
    return SealedEntry(id, ROOT_ID, name, kind, version, attributes, source, checksum)


def _version_of(sealed: SnapshotEntry) -> Version:
    return Version(sealed.size_bytes, sealed.mtime_ns, sealed.token)
