"""Taking in the listing of a directory, page by page, while others read it.

Names appear, and change their meaning, as pages arrive; names that are gone go at the end, and only then is
the listing said to be fresh. What this node replaced or removed meanwhile does not come back with a page that was read
before that. A listing that is dropped half-way therefore leaves nothing wrong. Memory: the
set of names seen, and none where the directory was empty before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.base.model import Entry, FileId, Kind, Version

if TYPE_CHECKING:
    from headrace.store.index import Index

NAME_BYTES_MAX = 255


class ListingWriter:
    """Made by Index.listing. Not thread-safe."""

    def __init__(self, index: Index, directory: FileId, *, was_empty: bool) -> None:
        self.skipped = 0  # names that no filesystem can show
        self._index = index
        self._directory = directory
        self._seen: set[bytes] | None = None if was_empty else set()
        # who saw the listing before may believe that a name is absent
        self._tell_new = index.fresh_until_ns(directory) != 0
        self._changed: list[tuple[FileId, bytes]] = []
        self._outdated: dict[bytes, list[tuple[Kind, Version]]] = {}

    def keep(self, name: bytes) -> None:
        """A name that must not be removed, listed or not."""
        if self._seen is not None:
            self._seen.add(name)

    def outdate(self, name: bytes, kind: Kind, version: Version) -> None:
        """What a name meant is known to be over, while the listing may have been read before that."""
        self._outdated.setdefault(name, []).append((kind, version))

    def _is_outdated(self, name: bytes, kind: Kind, version: Version) -> bool:
        return any(
            kind is old and (kind is Kind.DIRECTORY or version == one)
            for old, one in self._outdated.get(name, ())
        )

    def add(
        self, objects: Iterable[tuple[bytes, Version]], directories: Iterable[bytes], mtime_ns: int = 0
    ) -> None:
        """One page; one commit. Pages in byte order make a denser index. mtime_ns: of the directories
        named."""
        rows = [(name, Kind.FILE, version) for name, version in objects]
        rows += [(name, Kind.DIRECTORY, Version(0, mtime_ns)) for name in directories]
        rows.sort(key=lambda row: row[0])
        good = [row for row in rows if _is_name(row[0])]
        self.skipped += len(rows) - len(good)
        if self._outdated:
            good = [row for row in good if not self._is_outdated(*row)]
        with self._index.batch():
            self._changed += self._index.put_children(self._directory, good, tell_new=self._tell_new)
        for name, _, _ in good:
            self.keep(name)

    def finish(self, fresh_until_ns: int) -> list[tuple[FileId, bytes]]:
        """Names not seen are removed and the listing is fresh, in one commit; the names that changed or
        went."""
        gone: list[Entry] = []
        if self._seen is not None:
            gone = [entry for entry in self._index.children(self._directory) if entry.name not in self._seen]
        with self._index.batch():
            for entry in gone:
                if entry.name not in (self._seen or ()):
                    self._index.remove(self._directory, entry.name)
                    self._changed.append((self._directory, entry.name))
            self._index.set_fresh_until(self._directory, fresh_until_ns)
        return self.close()

    def close(self) -> list[tuple[FileId, bytes]]:
        """Ends the listing, finished or not; the names that changed and were not told yet. To be called however
        it went: names that change meanwhile are noted here for as long as it is open."""
        self._index.end_listing(self._directory, self)
        changed, self._changed = self._changed, []
        return changed


def _is_name(name: bytes) -> bool:
    """Tell whether a file system can have the name; without exceptions, as a listing may have millions."""
    return (
        0 < len(name) <= NAME_BYTES_MAX
        and b"/" not in name
        and b"\0" not in name
        and name not in (b".", b"..")
    )
