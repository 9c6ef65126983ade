"""Keep the names of directories that other file systems are mounted on: seals in place, and exclusive directories.

The kernel detaches a mount when the name below it is invalidated, or is looked up and is another inode. So such names,
and those of the directories above them, are answered with the node that they had first, even if the origin lost them.
The nodes are kept in the handover state, because they belong to the connection as the kernel's names do.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec

from headrace.base.decoding import decode_msgpack
from headrace.base.errors import HeadraceError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.namespace_path import is_at_or_below
from headrace.fuse.client_protocol import ReadingClient
from headrace.fuse.handover_state import HandoverState
from headrace.seal.catalogue import Catalogue

KEPT_TTL_S = 1.0
"""Seconds for which the kernel keeps a name that only a mountpoint keeps, and between two looks at the places."""
_UNKNOWN = 1 << 46
"""Bit of the node ids of directories that the origin lacked from the first; the index counts its ids from 1."""

Resolve = Callable[[FileId, bytes], "Entry | None"]
"""Returns what the session answers to a lookup: the arguments are the parent's node and a path. Blocks on the node."""


class MountpointNames:
    """The names at and above the mountpoints below one mount. paths: returns the paths of the mountpoints; it blocks
    for small files. All methods may be called by any thread."""

    def __init__(
        self, client: ReadingClient, handover: HandoverState, paths: Callable[[], Iterable[bytes]]
    ) -> None:
        self._client = client
        self._handover = handover
        self._paths = paths
        self._looked_s = 0.0
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, bytes], Entry] = {}
        self._directories: dict[int, bytes] = {}
        self._replace(_decoded(handover.kept_names))

    def __contains__(self, place: tuple[int, bytes]) -> bool:
        """Return whether a (parent, name) pair leads to a mountpoint."""
        return place in self._entries

    def refresh(self, resolve: Resolve) -> int:
        """Keep the names of all present mountpoints from now on, and return their number. Call it before each mount.
        A directory that can't be resolved is kept as an empty one."""
        paths = list(self._paths())
        kept: dict[tuple[int, bytes], Entry] = {}
        for path in paths:
            parent, above = ROOT_ID, b""
            for name in filter(None, path.split(b"/")):
                place, above = (parent, name), above + b"/" + name
                entry = kept.get(place) or self._entries.get(place) or resolve(parent, above)
                if entry is None or entry.kind is not Kind.DIRECTORY:
                    entry = _directory(_unknown_id(*place), *place)
                kept[place] = _directory(entry.id, *place, entry)
                parent = entry.id
        self._replace(kept)
        self._handover.keep_names(_encoded(kept))
        return len(paths)

    def answer(self, parent: int, name: bytes, entry: Entry | None) -> Entry | None:
        """Return the entry to send for a name of which the index has `entry`, or nothing."""
        kept = self._entries.get((parent, name))
        if kept is None or (entry is not None and entry.id == kept.id):
            return entry
        self._drop_unmounted()
        kept = self._entries.get((parent, name))
        return entry if kept is None else _directory(kept.id, parent, name, entry)

    def is_lost(self, id: FileId) -> bool:
        """Return whether a directory is kept that the index has no more, or never had."""
        return id in self._directories and self._client.entry(id) is None

    def is_above_or_at(self, id: FileId) -> bool:
        """Return whether a mountpoint is the directory, or lies below it."""
        return id in self._directories or (id == ROOT_ID and bool(self._directories))

    def entry(self, id: FileId) -> Entry | None:
        """Return the entry of a kept directory that the index has lost."""
        return next((entry for entry in list(self._entries.values()) if entry.id == id), None)

    def path(self, id: int) -> bytes | None:
        """Return the path of a kept directory."""
        return self._directories.get(id)

    def lower(self, id: FileId) -> FileId:
        """Return the directory that the index has at the path of a kept one, else the id itself."""
        path = self._directories.get(id)
        if path is None or self._client.entry(id) is not None:
            return id
        lower = ROOT_ID
        for name in filter(None, path.split(b"/")):
            entry = self._client.lookup_stale(lower, name)
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return id
            lower = entry.id
        return lower

    def merged(self, id: FileId, children: Iterator[Entry], after: bytes) -> Iterator[Entry]:
        """Yield the names of a directory, with those that are kept in it, in byte order."""
        kept = sorted(
            (name, entry)
            for (parent, name), entry in list(self._entries.items())
            if parent == id and name > after and self.answer(parent, name, None) is not None
        )
        return _merged([entry for _, entry in kept], children) if kept else children

    def _drop_unmounted(self) -> None:
        """Drop the names above places that no longer exist. Blocks for small files, at most once in KEPT_TTL_S."""
        now_s = time.monotonic()
        if now_s - self._looked_s < KEPT_TTL_S:
            return
        before = self._entries
        kept: dict[tuple[int, bytes], Entry] = {}
        try:
            paths = [*self._paths()]
        except OSError:
            return  # the places can't be read now, such as without descriptors: all names stay
        for path in paths:
            parent = ROOT_ID
            for name in filter(None, path.split(b"/")):
                entry = before.get((parent, name))
                if entry is None:
                    break
                kept[parent, name] = entry
                parent = entry.id
        self._replace(kept, before)
        self._looked_s = now_s

    def _replace(
        self,
        entries: dict[tuple[int, bytes], Entry],
        before: dict[tuple[int, bytes], Entry] | None = None,
    ) -> None:
        """Replace the kept names; only if they are those before, unless that is None."""
        directories: dict[int, bytes] = {ROOT_ID: b""}
        for (parent, name), entry in entries.items():  # parents come first
            directories[entry.id] = directories[parent] + b"/" + name
        del directories[ROOT_ID]
        with self._lock:
            if before is None or self._entries is before:
                self._entries, self._directories = entries, directories


def sealed_paths(catalogue: Catalogue, mountpoint: str) -> list[bytes]:
    """Return the paths in the namespace at which users mounted seals in place below a mount. Automatic seals are
    unmounted before their names change, and need none. Raises OSError."""
    paths = []
    with suppress(PermissionError):  # of another user: then nothing is mounted
        for seal in catalogue.seals():
            with suppress(HeadraceError):  # it was removed, or is damaged
                if not catalogue.record(seal).automatic:
                    paths += [place.mountpoint for place in catalogue.places(seal) if place.in_place]
    return sorted(
        os.fsencode(path.removeprefix(mountpoint))
        for path in paths
        if is_at_or_below(path, mountpoint) and path != mountpoint
    )


def _directory(id: FileId, parent: int, name: bytes, like: Entry | None = None) -> Entry:
    version = like.version if like is not None and like.kind is Kind.DIRECTORY else Version(0, 0)
    return Entry(id, FileId(parent), name, Kind.DIRECTORY, version)


def _unknown_id(parent: int, name: bytes) -> FileId:
    digest = hashlib.sha256(parent.to_bytes(8, "little") + name).digest()
    return FileId(_UNKNOWN | int.from_bytes(digest[:5], "little"))


def _merged(kept: list[Entry], children: Iterator[Entry]) -> Iterator[Entry]:
    """Merge two sorted lists of entries; a kept one replaces the other of its name."""
    try:
        for child in children:
            while kept and kept[0].name < child.name:
                yield kept.pop(0)
            yield kept.pop(0) if kept and kept[0].name == child.name else child
        yield from kept
    finally:
        close = getattr(children, "close", None)
        if close is not None:
            close()


def _encoded(entries: dict[tuple[int, bytes], Entry]) -> bytes:
    return msgspec.msgpack.encode([(parent, name, entry.id) for (parent, name), entry in entries.items()])


def _decoded(rows: bytes) -> dict[tuple[int, bytes], Entry]:
    if not rows:
        return {}
    decoded = decode_msgpack(rows, list[tuple[int, bytes, int]])
    return {(parent, name): _directory(FileId(id), parent, name) for parent, name, id in decoded}
