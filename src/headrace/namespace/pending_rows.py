"""Lay pending names of other nodes over the origin's names in the index.

The index holds the visible entry of a name. This module keeps the origin's row beneath it: peers that list the origin
through this node need it, and it is visible again once a listing finds the name there.

A node fetches the pending rows of a directory before it lists the directory (`replace_rows`). A name that its writer
has persisted by then is in that listing, so the name never disappears in between. The only I/O is that of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from headrace.base.model import Entry, FileId, Kind, Version
from headrace.namespace.mounts import MountTable
from headrace.overlay.pending_version import PREFIX, is_pending
from headrace.store.index import Index
from headrace.wire.peer_messages import NameRow

Rows = dict[bytes, NameRow | None]
"""Names whose meaning differs from the origin's; None marks a removed name."""
Changed = list[tuple[FileId, bytes]]
NamesChanged = Callable[[Changed], None]


@dataclass(slots=True)
class DirectoryRows:
    """Hold the pending rows of one directory.

    - `rows`: the visible rows.
    - `base`: the origin's row under each of them.
    - `leaving`: names that their writers no longer report. They stay visible until a listing completes that began after
      that.
    - `put`: the sequence number of this node's own last change under a name. A listing that began before it has older
      data.
    """

    rows: Rows = field(default_factory=dict)
    base: Rows = field(default_factory=dict)
    leaving: set[bytes] = field(default_factory=set)
    put: dict[bytes, int] = field(default_factory=dict)


class PendingRows:
    """The pending rows of all directories. `mounts`: their names keep their meaning."""

    def __init__(self, index: Index, mounts: MountTable) -> None:
        self._index = index
        self._mounts = mounts
        self._directories: dict[bytes, DirectoryRows] = {}
        self._puts = 0

    def replace_rows(self, directory_path: bytes, directory: FileId, rows: Rows) -> Changed:
        """Replace the pending rows of a directory, and show them in the index. Return the names whose meaning
        changed."""
        pending = self._directories.get(directory_path)
        if pending is None:
            if not rows:
                return []
            pending = self._directories[directory_path] = DirectoryRows()
        kept, before = self._mounts.below(directory_path), pending.rows
        new = {
            name: row
            for name, row in rows.items()
            if name not in kept and (name not in before or before[name] != row or name in pending.leaving)
        }
        before.update(new)
        pending.leaving = set(before.keys() - rows.keys())
        return self._apply(pending, directory, new)

    def apply(self, directory_path: bytes, directory: FileId) -> Changed:
        """Write all rows of a directory that are not leaving to the index. Return the names whose meaning changed."""
        pending = self._directories.get(directory_path)
        return [] if pending is None else self._apply_but(pending, directory, pending.leaving)

    def apply_over(self, listing: OriginListing, directory: FileId) -> Changed:
        """Do the same when a listing has all its pages, and include rows that started to leave during it: the listing
        began too early to know the origin's state of them. Skip names that this node itself has put since."""
        pending = self._directories.get(listing.directory_path)
        if pending is None:
            return []
        own = {name for name in pending.leaving if pending.put.get(name, 0) > listing.puts}
        return self._apply_but(pending, directory, own | listing.leaving & pending.leaving)

    def _apply_but(self, pending: DirectoryRows, directory: FileId, names: set[bytes]) -> Changed:
        rows = {name: row for name, row in pending.rows.items() if name not in names}
        return self._apply(pending, directory, rows)

    def _apply(self, pending: DirectoryRows, directory: FileId, rows: Rows) -> Changed:
        changed: Changed = []
        if not rows:
            return changed
        with self._index.batch():
            for name, row in rows.items():
                if name not in pending.base:
                    pending.base[name] = _base_of(self._index.lookup(directory, name))
                if self._show(directory, name, row):
                    changed.append((directory, name))
        return changed

    def _show(self, directory: FileId, name: bytes, row: NameRow | None) -> bool:
        if row is None:
            return self._index.names.remove(directory, name)
        before = self._index.lookup(directory, name)
        if row.kind == Kind.DIRECTORY:
            self._index.names.ensure_directory(directory, name)
            return before is None or before.kind is not Kind.DIRECTORY
        self._index.names.put_file(directory, name, version_of(row))
        return before is None or before.kind is not Kind.FILE or before.version != version_of(row)

    def put(self, directory_path: bytes, name: bytes, row: NameRow | None) -> None:
        """Record that this node put `row` to the origin, or removed the name (None). The node may have done so in
        place of the writer, whose rows are still shown. Peers that list the directory through this node get the new
        row."""
        pending = self._directories.get(directory_path)
        if pending is not None and name in pending.base:
            pending.base[name] = row
            pending.put[name] = self._puts = self._puts + 1

    def listing(self, directory_path: bytes) -> OriginListing:
        """Return the state for a listing of the origin. Call it after `replace_rows`, before the listing begins."""
        pending = self._directories.get(directory_path)
        names = (set(), set()) if pending is None else _names(pending)
        return OriginListing(self._directories, directory_path, *names, puts=self._puts)

    # ------------------------------------------------------------ queries

    def is_leaving(self, directory_path: bytes) -> bool:
        """Return whether only a new listing can show the present entries of some names of the directory."""
        pending = self._directories.get(directory_path)
        return pending is not None and bool(pending.leaving)

    def knows(self, directory_path: bytes) -> bool:
        return directory_path in self._directories

    def row(self, directory_path: bytes, name: bytes) -> tuple[NameRow | None] | None:
        """Return the row that a name is shown as, in a tuple; None if it is shown as the origin has it."""
        pending = self._directories.get(directory_path)
        return None if pending is None or name not in pending.rows else (pending.rows[name],)

    def at_origin(
        self, directory_path: bytes, directory: FileId, children: Iterable[Entry]
    ) -> Iterator[NameRow]:
        """Yield the origin's rows of a directory, given its children in the index. Rows may change before the next one
        is taken. No name that the origin has all that time is left out then, unless a writer hides it and shows it
        again meanwhile. One may come twice."""
        before = {*self._base(directory_path)}
        answered: set[bytes] = set()
        for child in children:
            if child.name in before or child.name in self._base(directory_path):
                answered.add(child.name)
            row = self.row_at_origin(directory_path, child.name, child)
            if row is not None:
                yield row
        for name in (
            before | self._base(directory_path).keys()
        ) - answered:  # hidden in the index, now or before
            row = self.row_at_origin(directory_path, name, self._index.lookup(directory, name))
            if row is not None:
                yield row

    def row_at_origin(self, directory_path: bytes, name: bytes, entry: Entry | None) -> NameRow | None:
        """Return the origin's row of a name; None if the origin has none. entry: what the index has."""
        base = self._base(directory_path)
        return base[name] if name in base else _base_of(entry)

    def _base(self, directory_path: bytes) -> Rows:
        pending = self._directories.get(directory_path)
        return {} if pending is None else pending.base


class OriginListing:
    """One listing of a directory at its origin, in progress.

    `leaving` are the names that left before it began, which it shows as the origin has them. `names` are the other
    pending names at its start; `puts` is the sequence number at its start.
    """

    def __init__(
        self,
        directories: dict[bytes, DirectoryRows],
        directory_path: bytes,
        leaving: set[bytes],
        names: set[bytes],
        *,
        puts: int,
    ) -> None:
        self._directories = directories
        self.directory_path = directory_path
        self.leaving = leaving
        self._unseen = names
        self.puts = puts

    @property
    def is_bare(self) -> bool:
        """Return whether the directory has no pending rows."""
        return self.directory_path not in self._directories

    def rest(self, rows: Iterable[NameRow]) -> list[NameRow]:
        """Return the rows of a page that no pending row covers, and remember the others as the origin's state."""
        pending = self._directories.get(self.directory_path)
        rows = [row for row in rows if not row.token.startswith(PREFIX)]
        if pending is None:
            return rows
        uncovered = []
        for row in rows:
            if row.name not in pending.rows or row.name in self.leaving:
                uncovered.append(row)
            elif pending.put.get(row.name, 0) <= self.puts:
                pending.base[row.name] = row
                self._unseen.discard(row.name)
        return uncovered

    def end(self) -> None:
        """Finish the listing, when all its pages are in the index. Names that were leaving when it began show the
        origin's state now."""
        pending = self._directories.get(self.directory_path)
        if pending is None:
            return
        for name in self._unseen & pending.rows.keys():
            if pending.put.get(name, 0) <= self.puts:
                pending.base[name] = None
        for name in self.leaving & pending.leaving:
            pending.leaving.discard(name)
            pending.rows.pop(name, None)
            pending.base.pop(name, None)
            pending.put.pop(name, None)
        if not pending.rows:
            del self._directories[self.directory_path]


def _names(pending: DirectoryRows) -> tuple[set[bytes], set[bytes]]:
    return set(pending.leaving), pending.rows.keys() - pending.leaving


def _base_of(entry: Entry | None) -> NameRow | None:
    return None if entry is None or is_pending(entry.version) else row_of(entry)


def row_of(entry: Entry) -> NameRow:
    version = entry.version
    return NameRow(entry.name, int(entry.kind), version.size_bytes, version.mtime_ns, version.token)


def version_of(row: NameRow) -> Version:
    return Version(row.size_bytes, row.mtime_ns, row.token)
