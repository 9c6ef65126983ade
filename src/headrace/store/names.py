"""Write the rows of names: entries, their ids, and how long the listing of a directory is fresh. Only the node writes
names.

Each change is a commit of its own, or part of the surrounding batch. It survives kill -9 on return, a power loss after
the next checkpoint. All methods may block for a commit (some 80 us), and while another thread has a batch. Listings in
progress are notified of each change, so that an older page does not undo it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from headrace.base.errors import NotSupportedError
from headrace.base.model import ROOT_ID, Attributes, Entry, FileId, Kind, Version
from headrace.base.namespace_path import NAME_BYTES_MAX
from headrace.store.environment import Environment
from headrace.store.schema import (
    KEY,
    CachedFile,
    entry_key,
    pack_entry,
    pack_fresh_until,
)
from headrace.store.transactions import Transactions

WALKED_NAMES_MAX = 20_000
"""Names that are passed to find listings below a directory: some 40 ms."""

OnRedated = Callable[[CachedFile], None]


class IndexRows(Protocol):
    """The rows that a change of names reads, and the records of cached files: the index."""

    def lookup(self, parent: FileId, name: bytes) -> Entry | None: ...
    def children(self, directory: FileId, *, after: bytes = b"") -> Iterator[Entry]: ...
    def fresh_until_ns(self, directory: FileId) -> int: ...
    def cached(self, id: FileId) -> CachedFile | None: ...
    def put_cached(self, cached: CachedFile) -> None: ...
    def supersede(self, id: FileId) -> None: ...


class ListingInProgress(Protocol):
    """A listing whose pages are being stored while names change."""

    def keep(self, name: bytes) -> None: ...
    def outdate(self, name: bytes, kind: Kind, version: Version) -> None: ...
    def settle(self, name: bytes) -> None: ...
    def expire(self, to_ns: int) -> None: ...


class NameWriter:
    """Write the names of an index. rows: reads them. boot: the number of this boot, for times of listings. on_redated:
    called within the transaction with the record of a file whose object has a new time and the same bytes. Such is the
    case when only metadata changed."""

    def __init__(
        self,
        transactions: Transactions,
        environment: Environment,
        rows: IndexRows,
        *,
        boot: int,
        on_redated: OnRedated,
    ) -> None:
        self.rows = rows
        self.batch = transactions.batch
        self._transactions = transactions
        self._entries = environment.entries
        self._ids = environment.names
        self._directories = environment.directories
        self._boot = boot
        self._on_redated = on_redated
        self._listings: dict[FileId, list[ListingInProgress]] = {}

    def ensure_directory(self, parent: FileId, name: bytes) -> FileId:
        """Return the id of a directory, and create it if needed. An existing directory keeps its id; a file of that
        name is replaced."""
        with self.batch():
            old = self._current(parent, name)
            if old is not None and old.kind is Kind.DIRECTORY:
                return old.id
            return self._replace(parent, name, Kind.DIRECTORY, Version(0, 0), old)

    def put_file(
        self, parent: FileId, name: bytes, version: Version, attributes: Attributes | None = None
    ) -> tuple[FileId, bool]:
        """Return the id of a file, and whether the name belonged to something else before. An equal version keeps its
        id, and its attributes unless new ones are passed."""
        with self.batch():
            return self._put_file(parent, name, version, self._current(parent, name), attributes)

    def remove(self, parent: FileId, name: bytes) -> bool:
        """Remove a name with everything below it; return False if it does not exist."""
        with self.batch():
            old = self.rows.lookup(parent, name)
            if old is None:
                return False
            self._forget(old)
            self._transactions.delete(self._entries, entry_key(parent, name))
            return True

    def outdate(self, parent: FileId, name: bytes, *, is_directory: bool = False) -> None:
        """Announce that this node is about to change a name, so that listings in progress don't restore its old entry.
        is_directory: they must not restore a directory either, which they may have read before the index had it."""
        writers = self._listings.get(parent, ())
        old = self.rows.lookup(parent, name) if writers else None
        for writer in writers:
            writer.keep(name)
            if is_directory:
                writer.outdate(name, Kind.DIRECTORY, Version(0, 0))
            if old is not None:
                writer.outdate(name, old.kind, old.version)

    def settle(self, parent: FileId, name: bytes) -> None:
        """Announce that the caller knows a name from a lookup at the origin. Listings in progress began before its
        answer, so they neither store a file of that name nor remove it."""
        for writer in self._listings.get(parent, ()):
            writer.settle(name)

    def begin_listing(self, directory: FileId, listing: ListingInProgress) -> None:
        """Notify a listing of the names that change in its directory until `end_listing`."""
        self._listings.setdefault(directory, []).append(listing)

    def end_listing(self, directory: FileId, listing: ListingInProgress) -> None:
        others = [other for other in self._listings.get(directory, []) if other is not listing]
        if others:
            self._listings[directory] = others
        else:
            self._listings.pop(directory, None)

    def put_children(
        self,
        directory: FileId,
        rows: list[tuple[bytes, Kind, Version]],
        *,
        notify_new: bool = False,
        hidden: dict[bytes, Version] | None = None,
    ) -> list[tuple[FileId, bytes]]:
        """Store names of one directory, sorted. Return those that belonged to another entry before and, with
        notify_new, the new ones, too. The directory must be current. hidden: gets the files whose name is a directory
        of the index, which stays; None: such a file replaces it."""
        changed: list[tuple[FileId, bytes]] = []
        with self.batch():
            if not rows or (
                directory != ROOT_ID and self._transactions.get(self._ids, KEY.pack(directory)) is None
            ):
                return changed  # the directory was removed while it was listed
            beyond = entry_key(directory, rows[0][0]) > self._transactions.last_key(self._entries)
            previous = b""
            for name, kind, version in rows:
                next_id, replaced = self._transactions.next_id, False
                if beyond and name != previous:
                    self._replace(directory, name, kind, version, None, append=True)
                elif kind is Kind.DIRECTORY:
                    old = self.rows.lookup(directory, name)
                    if old is None or old.kind is not kind:
                        self._replace(directory, name, kind, version, old)
                        replaced = old is not None
                else:
                    replaced = self._put_child(directory, name, version, hidden)
                if replaced or (notify_new and self._transactions.next_id != next_id):
                    changed.append((directory, name))
                previous = name
        return changed

    def set_fresh_until(self, directory: FileId, ns: int) -> None:
        with self.batch():
            if directory == ROOT_ID or self._transactions.get(self._ids, KEY.pack(directory)) is not None:
                self._transactions.put(
                    self._directories, KEY.pack(directory), pack_fresh_until(self._boot, ns)
                )

    def expire(self, directory: FileId, *, to_ns: int) -> None:
        """Expire the listing of a directory, if there is one. One in progress expires at its end, because its pages may
        have been read before the change. to_ns: the new end."""
        for listing in self._listings.get(directory, ()):
            listing.expire(to_ns)
        if self.rows.fresh_until_ns(directory):
            self.set_fresh_until(directory, to_ns)

    def expire_all(self, directory: FileId, *, to_ns: int = 0) -> None:
        """Expire the listing of a directory and every one below. to_ns: the new end of those that exist. Where many
        names are below, it looks at all listings of the index instead, which are far fewer."""
        with self.batch():
            listed = self._listed_in_walk(directory)
            for id in self._listed_below(directory) if listed is None else listed:
                self.expire(id, to_ns=to_ns)
                if not to_ns:
                    self._transactions.delete(self._directories, KEY.pack(id))

    def _listed_in_walk(self, directory: FileId) -> list[FileId] | None:
        """Return the directories at and below one that are listed, or being listed, by a walk over the names; None if
        there are too many."""
        listed: list[FileId] = []
        pending, names = [directory], 0
        while pending:
            current = pending.pop()
            if current in self._listings or self.rows.fresh_until_ns(current):
                listed.append(current)
            for entry in self.rows.children(current):
                names += 1
                if names > WALKED_NAMES_MAX:
                    return None
                if entry.kind is Kind.DIRECTORY:
                    pending.append(entry.id)
        return listed

    def _listed_below(self, directory: FileId) -> list[FileId]:
        """Return the same by the listings of the whole index and the parents of their directories."""
        is_below: dict[FileId, bool] = {ROOT_ID: directory == ROOT_ID, directory: True}

        def check(id: FileId) -> bool:
            passed: list[FileId] = []
            while id not in is_below:
                passed.append(id)
                key = self._transactions.get(self._ids, KEY.pack(id))
                id = ROOT_ID if key is None else FileId(KEY.unpack_from(key)[0])
            is_below.update(dict.fromkeys(passed, is_below[id]))
            return is_below[id]

        ids = {*self._listings, *map(FileId, self._transactions.ids_of(self._directories))}
        return list(filter(check, ids))

    def _current(self, parent: FileId, name: bytes) -> Entry | None:
        """Return the entry of a name that is about to be written, and keep listings in progress from removing the name.
        Raises NotSupportedError for a name of an invalid length."""
        if not 0 < len(name) <= NAME_BYTES_MAX:
            raise NotSupportedError(
                os.fsdecode(name[:64]), why=f"its name has {len(name)} bytes; 1 to 255 are supported"
            )
        for writer in self._listings.get(parent, ()):
            writer.keep(name)
        return self.rows.lookup(parent, name)

    def _put_child(
        self, directory: FileId, name: bytes, version: Version, hidden: dict[bytes, Version] | None
    ) -> bool:
        """Store a listed file. Return whether the name belonged to another entry before. hidden: as in put_children."""
        old = self._current(directory, name)
        if hidden is not None and old is not None and old.kind is Kind.DIRECTORY:
            hidden[name] = version
            return False
        return self._put_file(directory, name, version, old)[1]

    def _put_file(
        self,
        parent: FileId,
        name: bytes,
        version: Version,
        old: Entry | None,
        attributes: Attributes | None = None,
    ) -> tuple[FileId, bool]:
        if old is not None and old.kind is Kind.FILE and old.version == version:
            if attributes is not None and old.attributes != attributes:
                value = pack_entry(Kind.FILE, old.id, old.version, attributes)
                self._transactions.put(self._entries, entry_key(parent, name), value)
            elif old.attributes is None and old.version.mtime_ns != version.mtime_ns:
                self._redate(old.id)  # but not for this node's own uploads, whose response had no time
            return old.id, False
        id = self._replace(parent, name, Kind.FILE, version, old, attributes=attributes)
        return id, old is not None

    def _replace(
        self,
        parent: FileId,
        name: bytes,
        kind: Kind,
        version: Version,
        old: Entry | None,
        *,
        append: bool = False,
        attributes: Attributes | None = None,
    ) -> FileId:
        if old is not None:
            self._forget(old)
        id = self._transactions.new_id()
        key = entry_key(parent, name)
        self._transactions.put(self._entries, key, pack_entry(kind, id, version, attributes), append=append)
        self._transactions.put(self._ids, KEY.pack(id), key, append=True)
        return id

    def _forget(self, entry: Entry) -> None:
        """Delete everything about an id and those below it except its own name, which the caller overwrites or
        removes."""
        pending = [entry]
        while pending:
            current = pending.pop()
            key = KEY.pack(current.id)
            self._transactions.delete(self._ids, key)
            if current.kind is Kind.FILE:
                self._supersede(current.id)
                continue
            self._transactions.delete(self._directories, key)
            for child in self.rows.children(current.id):
                self._transactions.delete(self._entries, entry_key(current.id, child.name))
                pending.append(child)

    def _supersede(self, id: FileId) -> None:
        cached = self.rows.cached(id)
        if cached is not None:
            self.rows.put_cached(msgspec.structs.replace(cached, superseded=True))
            self.rows.supersede(id)

    def _redate(self, id: FileId) -> None:
        cached = self.rows.cached(id)
        if cached is None:
            return
        if cached.content_type_code is not None:
            self.rows.put_cached(msgspec.structs.replace(cached, content_type_code=None))
        self._on_redated(cached)
