"""Map the node ids of a writable mount to names: the kernel's requests name ids, the upper layer has paths.

A file of the upper layer has the bit UPPER, its inode number, and the count of files that had the number before
(`generations.py`). So has a directory, except one that the origin had first, which keeps its id of the index. The table
stores the names that replies to the kernel had, and drops them when the kernel forgets the node. After a takeover it is
empty: it looks names up in the index, or searches the upper layer.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable

from headrace.base.file_handles import file_handle
from headrace.base.model import FILE_ID_MAX, ROOT_ID, FileId
from headrace.base.namespace_path import join
from headrace.fuse.generations import Generations
from headrace.fuse.node_ids import UPPER
from headrace.overlay.mark_names import MARKS
from headrace.overlay.upper import Hidden, Upper

SEARCHED_PATHS_MAX = 1 << 16
"""Most paths that are remembered after a search of the upper layer."""
DEPTH_MAX = 4096
"""Most names of a path. Names that were stored at different times may form a cycle."""


class ReplacedError(Exception):
    """Report that a name leads to another file than its status said: the caller reads the status again."""


class NodeRecord:
    """Holds what replies to the kernel had of one node: its names, and the number of its lookups."""

    __slots__ = ("handle", "is_counted", "lookups", "names", "removed")

    def __init__(self, *, is_counted: bool) -> None:
        self.lookups = 0
        self.is_counted = is_counted
        """True if `lookups` has all of them: no earlier session sent any."""
        self.removed: os.stat_result | None = None
        """The attributes of a directory that was removed, and that some process may have open."""
        self.names: list[tuple[int, bytes]] = []  # (parent node, name), the newest last
        self.handle = b""
        """Identifies the file of the upper layer (`file_handle`). The node, or another process of the host, may remove
        it unseen, and its inode number may then be that of a new file."""

    def sent(self, place: tuple[int, bytes], handle: bytes) -> None:
        """Count a lookup that is sent with this name. handle: b"" if it was not read."""
        self.handle = handle or self.handle
        self.lookups += 1
        if not self.names or self.names[-1] != place:
            if place in self.names:
                self.names.remove(place)
            self.names.append(place)


class NodeTable:
    """Finds the path of a node and the node of a path. Thread-safe. `path_of` returns a path by an id of the index.
    generations: outlive the session."""

    def __init__(
        self, upper: Upper, path_of: Callable[[FileId], bytes | None], generations: Generations
    ) -> None:
        self._upper = upper
        self._path_of = path_of
        self._generations = generations
        self._records: dict[int, NodeRecord] = {}
        self._searched_paths: dict[int, bytes] = {}
        """Paths that had to be searched for after a takeover."""
        self._lock = threading.Lock()
        self.numbers: dict[int, int] = {}
        """The inode number to show for each node that was copied up: the number that the file had before."""

    def node_of(self, path: bytes, file_stat: os.stat_result) -> int:
        """Return the node id of a path of the upper layer."""
        if stat.S_ISDIR(file_stat.st_mode) and (id := self._lower_id(path)):
            return id
        node = self._generations.node_of(file_stat.st_ino)
        if node not in self._records and stat.S_ISREG(file_stat.st_mode):
            self._set_number(node, path)
        return node

    def _set_number(self, node: int, path: bytes) -> None:
        number = self._lower_id(path)
        if number:
            self.numbers[node] = number
        else:
            self.numbers.pop(node, None)

    def is_node(self, node: int, file_stat: os.stat_result) -> bool:
        """Return whether a file of the upper layer is a node. A directory of the origin has only its name for that."""
        return not node & UPPER or node == self._generations.node_of(file_stat.st_ino)

    def remember(
        self, node: int, parent: int, name: bytes, *, file: bytes | int | None = None, new: bool = False
    ) -> tuple[int, int]:
        """Count a lookup that is about to be sent to the kernel, and return the node id and the generation to send.
        file: the path or a descriptor of a node of the upper layer. If it is a later file of the same inode number, it
        is another node. With `new` the file was created just now. Raises ReplacedError."""
        place = (parent, name)
        with self._lock:
            record = self._records.get(node)
            handle = b"" if file is None else self._handle_to_send(node, record, place, file, new=new)
            is_later = record is not None and b"" not in (handle, record.handle) and handle != record.handle
            may_be_known = record is not None or self._generations.is_inherited(node)
            if is_later or (new and may_be_known):
                node = self._renew(node, record, file)
                record = self._records.get(node)
            if record is None:
                is_counted = new or not self._generations.inherits
                record = self._records[node] = NodeRecord(is_counted=is_counted)
                self._generations.learn(node)
            record.sent(place, handle)
            return node, self._generations.generation_of(node)

    def _handle_to_send(
        self, node: int, record: NodeRecord | None, place: tuple[int, bytes], file: bytes | int, *, new: bool
    ) -> bytes:
        """Return what identifies a file; b"" if that is not needed. Raises ReplacedError."""
        is_known = record is not None and not new and record.names[-1:] == [place]
        handle = b"" if is_known or not node & UPPER else self._handle(file, node)
        if handle is None and not new:
            self.numbers.pop(node, None)  # perhaps it was read of the other file
            raise ReplacedError
        return handle or b""

    def _renew(self, node: int, record: NodeRecord | None, file: bytes | int | None) -> int:
        """Return the node id of a later file of a node's inode number. file: its path, if it may be a copy."""
        is_counted = record is not None and record.is_counted
        later = self._generations.renew(node, is_known=record is not None, is_counted=is_counted)
        self.numbers.pop(later, None)
        if isinstance(file, bytes):
            self._set_number(later, file)
        if again := self._records.get(later):  # the kernel knows it since the count had the same lower bits
            again.names.clear()
            again.handle, again.removed = b"", None
        return later

    def opened(self, node: int, fd: int) -> None:
        """Record which file a node is that is open now. It may be a later one of the same name and inode number."""
        handle = file_handle(fd)
        with self._lock:
            record = self._records.get(node)
            if record is not None:
                record.handle = handle

    def _handle(self, file: bytes | int, node: int) -> bytes | None:
        """Return what identifies a node's file; None if another file has the path, or none. As long as the pin is held,
        no other file gets the inode number."""
        if isinstance(file, int):
            return file_handle(file)
        try:
            with self._upper.at(file).pinned() as pin:
                return file_handle(pin.fd) if self.is_node(node, pin.fstat()) else None
        except OSError:
            return None

    def forget(self, node: int, lookups: int) -> None:
        with self._lock:
            record = self._records.get(node)
            if record is not None:
                record.lookups -= lookups
                if record.lookups <= 0:
                    del self._records[node]
                    self.numbers.pop(node, None)
                    self._generations.forget(node)

    def moved(self, node: int, old: tuple[int, bytes], new: tuple[int, bytes]) -> None:
        with self._lock:
            record = self._records.get(node)
            if record is not None:
                record.names = [place for place in record.names if place not in (old, new)] + [new]

    def removed(
        self, node: int, place: tuple[int, bytes], status: os.stat_result | Hidden | None = None
    ) -> None:
        """Record that a name was removed, or given to another node. status: what it had in the upper layer."""
        with self._lock:
            record = self._records.get(node)
            if record is not None and place in record.names:
                record.names.remove(place)
            if isinstance(status, os.stat_result) and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1):
                self._removed_last(node, record)

    def _removed_last(self, node: int, record: NodeRecord | None) -> None:
        """Make sure that no later file of the inode number is taken for the one that lost its last name. Only a
        directory of the origin keeps its node for another inode."""
        may_be_known = record is not None or self._generations.inherits
        if (
            node & UPPER and may_be_known and self._generations.is_newest(node)
        ):  # else another thread saw a later one
            self._renew(node, record, None)

    def directory_removed(self, node: int, place: tuple[int, bytes], attributes: os.stat_result) -> None:
        """Record that a directory was removed, and its last attributes."""
        with self._lock:
            record = self._records.get(node)
            self._removed_last(node, record)
            if record is not None and place in record.names:
                record.names.remove(place)
                record.removed = attributes

    def removed_directory(self, node: int) -> os.stat_result | None:
        record = self._records.get(node)
        return record.removed if record is not None and not record.names else None

    def path(self, node: int) -> bytes | None:
        """Return the path of a node. None: it has no name any more, or none that can be found."""
        if node == ROOT_ID:
            return b"/"
        if node & UPPER and not self._generations.is_newest(node):
            return None  # removed
        path = self.newest_path(node)
        if path is not None and self._is(path, node):
            return path
        return self._path_by_names(node)

    def _path_by_names(self, node: int) -> bytes | None:
        """Find the path after another session moved the node, or a directory above it. It visits each directory above
        once, however many there are, even if the names form a cycle."""
        paths: dict[int, bytes | None] = {}
        entered: set[int] = set()
        pending = [node]
        while pending:
            node = pending[-1]
            if node not in entered:
                entered.add(node)
                path = b"/" if node == ROOT_ID else self.newest_path(node)
                if path is not None and self._is(path, node):
                    paths[node] = path
                elif parents := [parent for parent, _ in self._places(node) or () if parent not in entered]:
                    pending += parents
                    continue
            if node not in paths:
                paths[node] = self._path_below_parents(node, paths)
            pending.pop()
        return paths[node]

    def _places(self, node: int) -> list[tuple[int, bytes]] | None:
        """Return the (parent, name) pairs sent to the kernel. None: no pair was sent; empty: no name is left."""
        with self._lock:
            record = self._records.get(node)
            return None if record is None else list(record.names)

    def _path_below_parents(self, node: int, paths: dict[int, bytes | None]) -> bytes | None:
        """Return the path of a node below one of its parents, whose paths are `paths`."""
        places = self._places(node)
        for parent, name in reversed(places or ()):
            directory = paths.get(parent)
            if directory is not None and self._is_same(path := join(directory, name), node):
                return path
        if places is not None and not places:
            return None  # removed
        if not node & UPPER:
            return self._path_of_lower(FileId(node & FILE_ID_MAX))
        if not self._generations.is_newest(node):
            return None  # removed
        searched = self._search(node)
        if searched is not None and len(self._searched_paths) < SEARCHED_PATHS_MAX:
            self._searched_paths[node] = searched
        return searched

    def newest_path(self, node: int) -> bytes | None:
        """Return the path by the newest names that were sent or searched for. It may have changed since."""
        parts: list[bytes] = []
        for _ in range(DEPTH_MAX):
            if node == ROOT_ID:
                return b"/" + b"/".join(reversed(parts))
            record = self._records.get(node)
            try:
                node, name = record.names[-1]  # type: ignore[union-attr]
            except (AttributeError, IndexError):
                top = self._searched_paths.get(node)
                return None if top is None else b"/".join([top, *reversed(parts)])
            parts.append(name)
        return None

    def _path_of_lower(self, id: FileId) -> bytes | None:
        """Return the path of an id of the index, or that of a directory renamed in the upper layer."""
        path = self._path_of(id)
        if path is not None:
            upper_path = self._upper.at(path)
            if not upper_path.is_directory() or self._lower_id(path) == id:
                return path
        moved = (path for path, attributes in self._upper.walk() if stat.S_ISDIR(attributes.st_mode))
        return next((candidate for candidate in moved if self._lower_id(candidate) == id), path)

    def _lower_id(self, path: bytes) -> int:
        try:
            return int(self._upper.at(path).getxattr(MARKS.lower_id))
        except (OSError, ValueError):
            return 0

    def _is(self, path: bytes, node: int) -> bool:
        if not node & UPPER:
            return True
        try:
            status = self._upper.tree.seen(path)
        except OSError:
            return False
        return status is not None and self.is_node(node, status)

    def _is_same(self, path: bytes, node: int) -> bool:
        """Return whether a path that was not the newest one of a node leads to its file, and to no later one of its
        inode number."""
        record = self._records.get(node)
        known = b"" if record is None else record.handle
        return self._is(path, node) and (not known or self._handle(path, node) in (b"", known))

    def _search(self, node: int) -> bytes | None:
        """Search the whole upper layer, after a takeover, or for a file whose name another session changed."""
        for path, attributes in self._upper.walk():
            if self.is_node(node, attributes) and self._is_same(path, node):
                return path
        return None
