"""Record in the index this node's changes at the origins, and the listings that a change made stale.

A listing that began before a change does not undo it: `outdate` notifies the listing, and names whose upload is in
flight are left out of its pages.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from headrace.base.model import ROOT_ID, Attributes, FileId, Kind, Version
from headrace.base.namespace_path import join, names_of, split
from headrace.namespace.pending_rows import PendingRows
from headrace.namespace.tree import NameTree
from headrace.origin.origin import ListPage
from headrace.wire.peer_messages import NameRow

STALE_NS = 1
"""Marks a listing that exists but must be repeated; 0 marks a directory that was never listed."""


class NameChanges:
    """Changes of names by this node."""

    def __init__(self, tree: NameTree, pending: PendingRows) -> None:
        self._tree = tree
        self._index = tree.index
        self._pending = pending
        self._in_flight: list[Collection[bytes]] = []

    def record_put(self, path: bytes, version: Version, attributes: Attributes | None = None) -> None:
        """Record that this node put a file to the origin."""
        self.record_puts([(path, version, attributes)])

    def record_puts(self, puts: Sequence[tuple[bytes, Version, Attributes | None]]) -> None:
        """Record that this node put files to the origin, in one commit."""
        directories: dict[bytes, FileId] = {}  # many files of a batch are in the same one
        with self._index.batch():
            for path, version, attributes in puts:
                above, name = split(path)
                if above not in directories:
                    directories[above] = self._tree.make_directories(above)
                self._index.names.outdate(directories[above], name)
                if self._index.names.put_file(directories[above], name, version, attributes)[1]:
                    directories.clear()  # the name may have been that of a directory
        for path, version, _ in puts:
            above, name = split(path)
            row = NameRow(name, int(Kind.FILE), version.size_bytes, version.mtime_ns, version.token)
            self._pending.put(above, name, row)

    def record_directory(self, path: bytes) -> None:
        """Record that this node created a directory at the origin."""
        directory = ROOT_ID
        with self._index.batch():
            for part in names_of(path):
                self._index.names.outdate(directory, part)
                directory = self._index.names.ensure_directory(directory, part)
        directory_path, name = split(path)
        self._pending.put(directory_path, name, NameRow(name, int(Kind.DIRECTORY), 0, 0, ""))

    def record_removal(self, path: bytes, *, is_directory: bool = False) -> None:
        """Record that this node removed a path with everything below it. `is_directory`: it was a directory, even if
        the index did not know it."""
        above, name = split(path)
        parent = self._tree.entry_at(above)
        if parent is not None and name:
            self._index.names.outdate(parent.id, name, is_directory=is_directory)
            self._index.names.remove(parent.id, name)
        self._pending.put(above, name, None)

    def is_pending(self, path: bytes) -> bool:
        """Return whether a name is shown as another node wrote or removed it, not as the origin has it."""
        return self._pending.row(*split(path)) is not None

    # ------------------------------------------------------------ stale listings

    def expire(self, path: bytes) -> None:
        """Mark the existing listings at and below a path as stale."""
        directory = self._tree.directory_at(path)
        if directory is not None:
            self._index.names.expire_all(directory, to_ns=STALE_NS)

    def invalidate(self, path: bytes) -> None:
        """Mark the listing of a directory as stale; the next lookup in it lists it again."""
        entry = self._tree.entry_at(path)
        if entry is not None:
            self._index.names.expire(entry.id, to_ns=STALE_NS)

    # ------------------------------------------------------------ uploads in flight

    def add_in_flight(self, paths: Collection[bytes]) -> None:
        """Add the paths of this node's uploads whose result at the origin is not known yet. Each listing reads the
        collection again."""
        self._in_flight.append(paths)

    def remove_in_flight(self, paths: Collection[bytes]) -> None:
        self._in_flight = [collection for collection in self._in_flight if collection is not paths]

    def is_uploading(self, directory_path: bytes, name: bytes) -> bool:
        """Return whether this node uploads a name, so that it may be at the origin without being in the index."""
        path = join(directory_path, name)
        return any(path in paths for paths in self._in_flight)

    def without_own(self, directory: FileId, path: bytes, page: ListPage) -> ListPage:
        """Return the page without new names that this node may have uploaded itself. Such a name may be removed here
        already, by a caller that could not know that the origin has it."""
        uploading = {
            split(child)[1] for paths in self._in_flight for child in paths if split(child)[0] == path
        }
        own = {name for name in uploading if self._index.lookup(directory, name) is None}
        if not own:
            return page
        objects = (info for info in page.objects if os.fsencode(info.key.rpartition("/")[2]) not in own)
        return ListPage(
            tuple(objects), tuple(name for name in page.directories if os.fsencode(name) not in own)
        )
