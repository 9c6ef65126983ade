"""Names that other nodes wrote, over what the origins have, in the index.

The index says of a name what is to be seen; what the origin has beneath is kept here, for other nodes that ask this one
about the origin, and is what shows again when a listing finds it there. The rows of a folder are asked for before its
listing begins (`take`): a name that its writer has persisted by then is in the listing, so it never goes in between.
No I/O but the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from headrace.base.model import Entry, FileId, Kind, Version
from headrace.overlay.pending_version import PREFIX, is_pending
from headrace.store.index import Index
from headrace.wire.peer_messages import NameRow

Rows = dict[bytes, NameRow | None]
"""What names mean, other than at the origin; None: nothing, they are removed."""
Changed = list[tuple[FileId, bytes]]


@dataclass(slots=True)
class DirectoryRows:
    """rows: what is shown. base: what the origin has under each. leaving: rows that their writers don't name any more:
    shown until a listing that began after that. put: when this node itself changed what the origin has under one, by a
    count: a listing that began before says nothing of it."""

    rows: Rows = field(default_factory=dict)
    base: Rows = field(default_factory=dict)
    leaving: set[bytes] = field(default_factory=set)
    put: dict[bytes, int] = field(default_factory=dict)


class PendingRows:
    """By folder. kept: names of a folder that are mounts."""

    def __init__(self, index: Index, kept: Callable[[bytes], set[bytes]]) -> None:
        self._index = index
        self._kept = kept
        self._folders: dict[bytes, DirectoryRows] = {}
        self._puts = 0

    def take(self, folder: bytes, directory: FileId, rows: Rows) -> Changed:
        """These are the rows from now on; the index shows them on return. The names that mean something else now."""
        overlay = self._folders.get(folder)
        if overlay is None:
            if not rows:
                return []
            overlay = self._folders[folder] = DirectoryRows()
        kept, before = self._kept(folder), overlay.rows
        new = {
            name: row
            for name, row in rows.items()
            if name not in kept and (name not in before or before[name] != row or name in overlay.leaving)
        }
        before.update(new)
        overlay.leaving = set(before.keys() - rows.keys())
        return self._apply(overlay, directory, new)

    def apply(self, folder: bytes, directory: FileId) -> Changed:
        """All rows that are not leaving are what the index shows, on return."""
        overlay = self._folders.get(folder)
        return [] if overlay is None else self._apply_but(overlay, directory, overlay.leaving)

    def apply_over(self, beneath: OriginListing, directory: FileId) -> Changed:
        """The same when a listing has all its pages: with rows that are leaving since it began, of which it was taken
        too early to know what the origin has; but not where this node itself put something since."""
        overlay = self._folders.get(beneath.folder)
        if overlay is None:
            return []
        own = {name for name in overlay.leaving if overlay.put.get(name, 0) > beneath.puts}
        return self._apply_but(overlay, directory, own | beneath.leaving & overlay.leaving)

    def _apply_but(self, overlay: DirectoryRows, directory: FileId, names: set[bytes]) -> Changed:
        rows = {name: row for name, row in overlay.rows.items() if name not in names}
        return self._apply(overlay, directory, rows)

    def _apply(self, overlay: DirectoryRows, directory: FileId, rows: Rows) -> Changed:
        changed: Changed = []
        if not rows:
            return changed
        with self._index.batch():
            for name, row in rows.items():
                if name not in overlay.base:
                    overlay.base[name] = _base_of(self._index.lookup(directory, name))
                if self._show(directory, name, row):
                    changed.append((directory, name))
        return changed

    def _show(self, directory: FileId, name: bytes, row: NameRow | None) -> bool:
        if row is None:
            return self._index.remove(directory, name)
        before = self._index.lookup(directory, name)
        if row.kind == Kind.DIRECTORY:
            self._index.ensure_directory(directory, name)
            return before is None or before.kind is not Kind.DIRECTORY
        self._index.put_file(directory, name, version_of(row))
        return before is None or before.kind is not Kind.FILE or before.version != version_of(row)

    def put(self, folder: bytes, name: bytes, row: NameRow | None) -> None:
        """This node put that to the origin, or removed what was there; it may be in another one's place, whose rows are
        still shown. Other nodes that ask for the listing are told so."""
        overlay = self._folders.get(folder)
        if overlay is not None and name in overlay.base:
            overlay.base[name] = row
            overlay.put[name] = self._puts = self._puts + 1

    def listing(self, folder: bytes) -> OriginListing:
        """To be made before a listing of the origin begins, after `take`."""
        overlay = self._folders.get(folder)
        names = (set(), set()) if overlay is None else _names(overlay)
        return OriginListing(self._folders, folder, *names, puts=self._puts)

    # ------------------------------------------------------------ asking

    def is_leaving(self, folder: bytes) -> bool:
        """Whether a listing is needed to know what some names are now."""
        overlay = self._folders.get(folder)
        return overlay is not None and bool(overlay.leaving)

    def knows(self, folder: bytes) -> bool:
        return folder in self._folders

    def row(self, folder: bytes, name: bytes) -> tuple[NameRow | None] | None:
        """What a name is shown as, whatever the origin has; None: as the origin has it."""
        overlay = self._folders.get(folder)
        return None if overlay is None or name not in overlay.rows else (overlay.rows[name],)

    def at_origin(self, folder: bytes, children: Iterable[Entry], *, only: bytes = b"") -> Iterator[NameRow]:
        """What the origin has, of the children that the index shows. only: of this name."""
        overlay = self._folders.get(folder)
        base = {} if overlay is None else overlay.base
        for child in children:
            if child.name not in base and not is_pending(child.version):
                yield row_of(child)
        yield from (row for row in base.values() if row is not None and only in (b"", row.name))


class OriginListing:
    """One listing of what the origin has of a folder. leaving: as it shows them. names: of all rows at its begin. puts:
    the count by then."""

    def __init__(
        self,
        folders: dict[bytes, DirectoryRows],
        folder: bytes,
        leaving: set[bytes],
        names: set[bytes],
        *,
        puts: int,
    ) -> None:
        self._folders = folders
        self.folder = folder
        self.leaving = leaving
        self._unseen = names
        self.puts = puts

    @property
    def is_bare(self) -> bool:
        """Nobody wrote anything there."""
        return self.folder not in self._folders

    def rest(self, rows: Iterable[NameRow]) -> list[NameRow]:
        """Of a page, what nobody wrote over."""
        overlay = self._folders.get(self.folder)
        rows = [row for row in rows if not row.token.startswith(PREFIX)]
        if overlay is None:
            return rows
        found = []
        for row in rows:
            if row.name not in overlay.rows or row.name in self.leaving:
                found.append(row)
            elif overlay.put.get(row.name, 0) <= self.puts:
                overlay.base[row.name] = row
                self._unseen.discard(row.name)
        return found

    def end(self) -> None:
        """All pages are in the index; those that were leaving mean what the origin has."""
        overlay = self._folders.get(self.folder)
        if overlay is None:
            return
        for name in self._unseen & overlay.rows.keys():
            if overlay.put.get(name, 0) <= self.puts:
                overlay.base[name] = None
        for name in self.leaving & overlay.leaving:
            overlay.leaving.discard(name)
            overlay.rows.pop(name, None)
            overlay.base.pop(name, None)
            overlay.put.pop(name, None)
        if not overlay.rows:
            del self._folders[self.folder]


def _names(overlay: DirectoryRows) -> tuple[set[bytes], set[bytes]]:
    return set(overlay.leaving), overlay.rows.keys() - overlay.leaving


def _base_of(entry: Entry | None) -> NameRow | None:
    return None if entry is None or is_pending(entry.version) else row_of(entry)


def row_of(entry: Entry) -> NameRow:
    version = entry.version
    return NameRow(entry.name, int(entry.kind), version.size_bytes, version.mtime_ns, version.token)


def version_of(row: NameRow) -> Version:
    return Version(row.size_bytes, row.mtime_ns, row.token)
