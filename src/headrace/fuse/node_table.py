"""Which name each node id of a writable mount has: the kernel speaks of ids, the upper layer of paths.

A file of the upper layer has the id UPPER | inode number; so has a directory, but for one that the origin had first,
which keeps its id of the index. Names are learnt from what the kernel is told, and are let go when it forgets. A
session that took over knows none: then the index is asked, or the layer searched.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable

from headrace.base.model import FILE_ID_MAX, ROOT_ID, FileId
from headrace.fuse.io_modes import UPPER
from headrace.overlay.upper import LOWER_ID, Upper, join

_INODE_MAX = UPPER - 1
FOUND_MAX = 1 << 16
DEPTH_MAX = 4096  # of a path; names learnt at different times may contradict each other


class NodeRecord:
    __slots__ = ("dead", "dead_fd", "generation", "lookups", "names")

    def __init__(self) -> None:
        self.lookups = 0
        self.generation = 0
        self.dead: os.stat_result | None = (
            None  # a directory that was removed, and that somebody may have open
        )
        self.dead_fd = -1  # keeps its inode number from being used again
        self.names: list[tuple[int, bytes]] = []  # (parent node, name), the newest last


class NodeTable:
    """path_of: a path by an id of the index."""

    def __init__(self, upper: Upper, path_of: Callable[[FileId], bytes | None]) -> None:
        self._upper = upper
        self._path_of = path_of
        self._known: dict[int, NodeRecord] = {}
        self._found: dict[int, bytes] = {}
        """What had to be searched for, after a take-over."""
        self._lock = threading.Lock()
        self.numbers: dict[int, int] = {}
        """Node → inode number to be shown, of files that were copied up: the one that they had before."""

    def node_of(self, path: bytes, found: os.stat_result) -> int:
        """Of something in the upper layer."""
        if stat.S_ISDIR(found.st_mode) and (id := self._lower_id(path)):
            return id
        node = UPPER | (found.st_ino & _INODE_MAX)
        if node not in self._known and stat.S_ISREG(found.st_mode):
            number = self._lower_id(path)
            if number:
                self.numbers[node] = number
            else:
                self.numbers.pop(node, None)
        return node

    def learn(self, node: int, parent: int, name: bytes, *, new: bool = False) -> int:
        """The kernel is about to be told; the generation to tell. new: the file was made just now, so whatever had the
        inode number before, and is not yet forgotten, is another one."""
        with self._lock:
            known = self._known.get(node)
            if new:
                self.numbers.pop(node, None)
            if known is None:
                known = self._known[node] = NodeRecord()
            elif new:
                known.generation += 1
                known.names.clear()
                known.dead = None
            known.lookups += 1
            place = (parent, name)
            if not known.names or known.names[-1] != place:
                if place in known.names:
                    known.names.remove(place)
                known.names.append(place)
            return known.generation

    def forget(self, node: int, lookups: int) -> None:
        with self._lock:
            known = self._known.get(node)
            if known is not None:
                known.lookups -= lookups
                if known.lookups <= 0:
                    del self._known[node]
                    self.numbers.pop(node, None)
                    if known.dead_fd >= 0:
                        os.close(known.dead_fd)

    def moved(self, node: int, old: tuple[int, bytes], new: tuple[int, bytes]) -> None:
        with self._lock:
            known = self._known.get(node)
            if known is not None:
                known.names = [place for place in known.names if place not in (old, new)] + [new]

    def removed(self, node: int, place: tuple[int, bytes]) -> None:
        with self._lock:
            known = self._known.get(node)
            if known is not None and place in known.names:
                known.names.remove(place)

    def directory_removed(self, node: int, place: tuple[int, bytes], was: os.stat_result, fd: int) -> None:
        """was: what it looked like; fd: of it, ours from now on."""
        with self._lock:
            known = self._known.get(node)
            if known is not None and place in known.names and known.dead_fd < 0:
                known.names.remove(place)
                known.dead, known.dead_fd = was, fd
                return
        os.close(fd)

    def dead(self, node: int) -> os.stat_result | None:
        known = self._known.get(node)
        return known.dead if known is not None and not known.names else None

    def path(self, node: int) -> bytes | None:
        """None: it has no name any more, or none that can be found."""
        if node == ROOT_ID:
            return b"/"
        likely = self._likely(node)
        if likely is not None and self._is(likely, node):
            return likely
        return self._path_by_names(node)

    def _path_by_names(self, node: int) -> bytes | None:
        """Another session moved it, or a directory above it: those above are looked for first, each once, however many
        there are, and though names may form a ring."""
        paths: dict[int, bytes | None] = {}
        entered: set[int] = set()
        pending = [node]
        while pending:
            node = pending[-1]
            if node not in entered:
                entered.add(node)
                path = b"/" if node == ROOT_ID else self._likely(node)
                if path is not None and self._is(path, node):
                    paths[node] = path
                elif above := [parent for parent, _ in self._places(node) or () if parent not in entered]:
                    pending += above
                    continue
            if node not in paths:
                paths[node] = self._path_below_known(node, paths)
            pending.pop()
        return paths[node]

    def _places(self, node: int) -> list[tuple[int, bytes]] | None:
        """None: the kernel was told none; empty: it has none any more."""
        with self._lock:
            known = self._known.get(node)
            return None if known is None else list(known.names)

    def _path_below_known(self, node: int, paths: dict[int, bytes | None]) -> bytes | None:
        """paths: of the directories that it may be in."""
        places = self._places(node)
        for parent, name in reversed(places or ()):
            directory = paths.get(parent)
            if directory is not None and self._is(path := join(directory, name), node):
                return path
        if places is not None and not places:
            return None  # removed
        if not node & UPPER:
            return self._path_below(FileId(node & FILE_ID_MAX))
        found = self._search(node)
        if found is not None and len(self._found) < FOUND_MAX:
            self._found[node] = found
        return found

    def _likely(self, node: int) -> bytes | None:
        """By what the kernel was told last, or what was found before; another session may have changed it since."""
        parts: list[bytes] = []
        for _ in range(DEPTH_MAX):
            if node == ROOT_ID:
                return b"/" + b"/".join(reversed(parts))
            known = self._known.get(node)
            try:
                node, name = known.names[-1]  # type: ignore[union-attr]
            except (AttributeError, IndexError):
                top = self._found.get(node)
                return None if top is None else b"/".join([top, *reversed(parts)])
            parts.append(name)
        return None

    def _path_below(self, id: FileId) -> bytes | None:
        """Of an id of the index: where that has it, unless it is a directory that was renamed here."""
        path = self._path_of(id)
        if path is not None:
            at = self._upper.at(path)
            if not at.is_folder() or self._lower_id(path) == id:
                return path
        moved = (one for one, found in self._upper.walk() if stat.S_ISDIR(found.st_mode))
        return next((one for one in moved if self._lower_id(one) == id), path)

    def _lower_id(self, path: bytes) -> int:
        try:
            return int(self._upper.at(path).getxattr(LOWER_ID))
        except (OSError, ValueError):
            return 0

    def _is(self, path: bytes, node: int) -> bool:
        if not node & UPPER:
            return True
        try:
            return self._upper.at(path).lstat().st_ino & _INODE_MAX == node & _INODE_MAX
        except OSError:
            return False

    def _search(self, node: int) -> bytes | None:
        """Through the whole layer: after a take-over, and for a file whose name another session changed."""
        for path, found in self._upper.walk():
            if found.st_ino & _INODE_MAX == node & _INODE_MAX:
                return path
        return None
