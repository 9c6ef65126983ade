"""Store the listing of a directory, page by page, while others read it.

Names appear, and change, as pages arrive. Missing names are removed at the end, and only then the listing counts as
fresh. An entry that this node replaced or removed meanwhile does not come back with a page that was read before. So a
listing that is abandoned half-way leaves nothing wrong. Memory: the set of listed names, and none if the directory was
empty before.

A name that is an object and a prefix is a directory, also if the two come in different pages. So a file replaces a
directory of the index only at the end, when no page had that directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.base.model import FileId, Kind, Version
from headrace.base.namespace_path import NAME_BYTES_MAX
from headrace.store.names import NameWriter
from headrace.store.schema import FOREVER_NS

NAMES_A_STEP = 4096
_END: Final = object()


class ListingWriter:
    """Write a listing of one directory in progress; `names` notifies it of changes until `close`. Not thread-safe."""

    def __init__(self, names: NameWriter, directory: FileId) -> None:
        self.skipped = 0  # names that no filesystem can show
        self._names = names
        self._directory = directory
        was_empty = next(names.rows.children(directory), None) is None
        self._listed: set[bytes] | None = None if was_empty else set()
        # a client with the previous listing may hold that a name does not exist
        self._notify_new = names.rows.fresh_until_ns(directory) != 0
        self._changed: list[tuple[FileId, bytes]] = []
        self._outdated: dict[bytes, list[tuple[Kind, Version]]] = {}
        self._settled: set[bytes] = set()
        self._hidden: dict[bytes, Version] = {}  # listed files whose name is a directory of the index
        self._directories: set[bytes] = set()
        self._fresh_until_max_ns = FOREVER_NS
        self._missing: list[bytes] = []
        self._look = self._look_in_steps()
        names.begin_listing(directory, self)

    def keep(self, name: bytes) -> None:
        """Keep a name from being removed, listed or not."""
        if self._listed is not None:
            self._listed.add(name)

    def keep_directory(self, name: bytes) -> None:
        """Keep the directory of a mount, which hides what the origin around it has under its name."""
        self.keep(name)
        self._directories.add(name)

    def outdate(self, name: bytes, kind: Kind, version: Version) -> None:
        """Record that an entry is out of date; the listing may have been read before the change."""
        self._outdated.setdefault(name, []).append((kind, version))

    def settle(self, name: bytes) -> None:
        """Leave a name as it is. A directory of that name is stored nevertheless: it hides the file."""
        self.keep(name)
        self._settled.add(name)

    def expire(self, to_ns: int) -> None:
        """Let the listing be fresh until then at most: another node changed the directory at its origin."""
        self._fresh_until_max_ns = min(self._fresh_until_max_ns, to_ns)

    def _is_outdated(self, name: bytes, kind: Kind, version: Version) -> bool:
        return any(
            kind is old_kind and (kind is Kind.DIRECTORY or version == old_version)
            for old_kind, old_version in self._outdated.get(name, ())
        )

    def add(
        self, objects: Iterable[tuple[bytes, Version]], directories: Iterable[bytes], mtime_ns: int = 0
    ) -> None:
        """Store one page in one commit. Pages in byte order make a denser index. mtime_ns: of the directories in the
        page."""
        rows = [(name, Kind.FILE, version) for name, version in objects]
        rows += [(name, Kind.DIRECTORY, Version(0, mtime_ns)) for name in directories]
        rows.sort(key=lambda row: row[0])
        good = [row for row in rows if _is_name(row[0])]
        self.skipped += len(rows) - len(good)
        if self._outdated:
            good = [row for row in good if not self._is_outdated(*row)]
        if self._settled:
            good = [row for row in good if row[1] is Kind.DIRECTORY or row[0] not in self._settled]
        with self._names.batch():
            self._changed += self._names.put_children(
                self._directory, good, notify_new=self._notify_new, hidden=self._hidden
            )
        for name, kind, _ in good:
            self.keep(name)
            if kind is Kind.DIRECTORY and self._listed is not None:
                self._directories.add(name)

    def look_for_missing(self) -> Iterator[None]:
        """Look for the names that were not listed, after the last page, in steps of some 10 ms. Names may change in
        between; `finish` takes the remaining steps at once."""
        while next(self._look, _END) is not _END:
            yield

    def _look_in_steps(self) -> Iterator[None]:
        listed = self._listed
        if listed is None:
            return
        for count, entry in enumerate(self._names.rows.children(self._directory), 1):
            if entry.name not in listed:
                self._missing.append(entry.name)
            if count % NAMES_A_STEP == 0:
                yield

    def finish(self, fresh_until_ns: int) -> list[tuple[FileId, bytes]]:
        """Remove names that were not listed and mark the listing as fresh, unless it expired meanwhile, in one commit.
        Return the names that changed or were removed."""
        for _ in self._look:
            pass
        with self._names.batch():
            self._changed += self._names.put_children(self._directory, self._shown_files())
            for name in self._missing:
                if name not in (self._listed or ()):  # else it was put meanwhile
                    self._names.remove(self._directory, name)
                    self._changed.append((self._directory, name))
            self._names.set_fresh_until(self._directory, min(fresh_until_ns, self._fresh_until_max_ns))
        return self.close()

    def _shown_files(self) -> list[tuple[bytes, Kind, Version]]:
        """Return the files that take the place of a directory. Names that this node changed meanwhile stay as they are.
        Of a directory that was empty before, each name is one of this listing."""
        if self._listed is None:
            return []
        changed = self._directories | self._outdated.keys() | self._settled
        return sorted(
            (name, Kind.FILE, version)
            for name, version in self._hidden.items()
            if name not in changed and self._is_directory(name)
        )

    def _is_directory(self, name: bytes) -> bool:
        entry = self._names.rows.lookup(self._directory, name)
        return entry is not None and entry.kind is Kind.DIRECTORY

    def close(self) -> list[tuple[FileId, bytes]]:
        """End the listing, complete or not, and return changed names that were not returned yet. Always call it: until
        then names that change meanwhile are recorded here."""
        self._names.end_listing(self._directory, self)
        changed, self._changed = self._changed, []
        return changed


def _is_name(name: bytes) -> bool:
    """Return whether a file system can have the name; without exceptions, as a listing may have millions."""
    return (
        0 < len(name) <= NAME_BYTES_MAX
        and b"/" not in name
        and b"\0" not in name
        and name not in (b".", b"..")
    )
