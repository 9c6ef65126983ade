"""Build the whiteouts and removed directories that moves leave in the upper layer. They hide the origin's names at the
old place of a directory, and below its new place. The caller holds the layer's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.base.beneath import SafePath
from headrace.base.model import Entry, FileId, Kind
from headrace.base.namespace_path import join
from headrace.overlay.hiding import defer_removal, new_whiteout
from headrace.overlay.marks import base_version, make_removed, make_whiteout, set_base
from headrace.overlay.upper import Upper

Names = Callable[[bytes], list[tuple[bytes, bool]]]
"""List the names of a directory in the upper layer, and whether each is visible."""


class Children(Protocol):
    """List a directory of the origin, from the index."""

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...


class WhiteoutBuilder:
    """Build whiteouts. names: lists a directory of the upper layer, and whether each name is visible."""

    def __init__(self, upper: Upper, lower: Children, names: Names) -> None:
        self._upper = upper
        self._lower = lower
        self._names = names

    def replacement_for(self, path: bytes, entry: Entry | None) -> SafePath:
        """Return the entry that replaces a moved directory at its old place. It is a removed directory that hides all
        names of the origin there, and a file of the origin that the moved directory had replaced."""
        directory = self._upper.new()
        make_removed(directory)
        set_base(directory, path, self._upper.base_of(path))
        self.fill(directory, path, entry)
        return directory

    def fill(self, directory: SafePath, path: bytes, entry: Entry | None) -> None:
        """Fill a new directory with entries that hide all names of the origin at a path."""
        pending = [(directory, path, entry)]
        while pending:
            pending += self._fill(*pending.pop())

    def _fill(
        self, directory: SafePath, path: bytes, entry: Entry | None
    ) -> list[tuple[SafePath, bytes, Entry | None]]:
        """Hide one level. Return the directories that were created, which are still empty."""
        directories: list[tuple[SafePath, bytes, Entry | None]] = []
        hidden = {name for name, visible in self._names(path) if not visible}
        children = [] if entry is None else list(self._lower.children(entry.id))
        for child in children:
            hidden.discard(child.name)
            child_path = join(path, child.name)
            if child.kind is Kind.DIRECTORY:
                directories.append((directory / child.name, child_path, child))
            else:
                make_whiteout(
                    directory / child.name, child_path, self._upper.base_of(child_path) or child.version
                )
        for name in hidden:
            child_path = join(path, name)
            if self._upper.at(child_path).is_directory():
                directories.append((directory / name, child_path, None))
            else:
                make_whiteout(directory / name, child_path, self._upper.base_of(child_path))
        for removed, _, _ in directories:
            make_removed(removed)
        return directories

    def hide_below(self, directory: SafePath, path: bytes, entry: Entry) -> None:
        """Hide all names of the origin below a path, in the directory that is at this path now."""
        pending = [(directory, path, entry)]
        while pending:
            directory, path, entry = pending.pop()
            for child in self._lower.children(entry.id):
                over, child_path = directory / child.name, join(path, child.name)
                if child.kind is Kind.DIRECTORY:
                    if not over.exists():
                        make_removed(over)
                    if over.is_directory():
                        pending.append((over, child_path, child))
                elif not over.exists():
                    make_whiteout(over, child_path, child.version)
                elif base_version(over, child_path) is None:
                    set_base(over, child_path, child.version)

    def inherit_hidden(self, target: bytes, source: bytes) -> None:
        """Make a directory hide all names that the empty directory at its target hides. That includes a file of the
        origin in the place of that directory, and of each directory in it."""
        pending = [(target, source)]
        while pending:
            target, source = pending.pop()
            set_base(self._upper.at(source), target, self._upper.base_of(target))
            for name, _ in self._names(target):
                if self._inherit_hidden_name(join(target, name), join(source, name)):
                    pending.append((join(target, name), join(source, name)))

    def _inherit_hidden_name(self, hidden: bytes, path: bytes) -> bool:
        """Hide one name. Return whether both entries are directories, so that their names must follow."""
        cover = self._upper.at(path)
        if self._upper.at(hidden).is_directory():
            if not cover.exists():
                cover.mkdir(0o755)
                self._upper.mark_removed(path)
            if cover.is_directory():
                return True
            defer_removal(self._upper, hidden)  # a file replaces it
            return False
        base = self._upper.base_of(hidden)
        if not cover.exists():
            new_whiteout(self._upper, hidden, base).rename(cover)
        else:
            set_base(cover, hidden, base)
        return False
