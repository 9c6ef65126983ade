"""What stays in the upper layer where a folder of the origin was moved, and what a folder that takes a place hides:
whiteouts, and folders marked as removed. The layer's lock is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.base.beneath import SafePath
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.overlay.upper import (
    BaseVersion,
    Upper,
    base_version,
    join,
    make_removed,
    make_whiteout,
    set_base,
)

Names = Callable[[bytes], list[tuple[bytes, bool]]]


class Children(Protocol):
    """What the origin has in a folder, by the index."""

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...


class WhiteoutBuilder:
    """names: of a folder of the upper layer, and whether they are visible there."""

    def __init__(self, upper: Upper, lower: Children, names: Names) -> None:
        self._upper = upper
        self._lower = lower
        self._names = names

    def leave(self, path: bytes, entry: Entry | None) -> SafePath:
        """What stays where a directory was: a removed one that hides all that the origin has there; a file too, in
        whose place the directory was."""
        made = self._upper.new()
        make_removed(made)
        base = self._upper.base_of(path)
        if base is not None:
            set_base(made, BaseVersion(path, base))
        self.fill(made, path, entry)
        return made

    def fill(self, made: SafePath, path: bytes, entry: Entry | None) -> None:
        """A folder gets what hides all that the origin has at that path."""
        pending = [(made, path, entry)]
        while pending:
            pending += self._fill(*pending.pop())

    def _fill(
        self, folder: SafePath, path: bytes, entry: Entry | None
    ) -> list[tuple[SafePath, bytes, Entry | None]]:
        """Return the folders that it has now: they are still empty."""
        folders: list[tuple[SafePath, bytes, Entry | None]] = []
        hidden = {name for name, visible in self._names(path) if not visible}
        children = [] if entry is None else list(self._lower.children(entry.id))
        for child in children:
            hidden.discard(child.name)
            child_path = join(path, child.name)
            if child.kind is Kind.DIRECTORY:
                folders.append((folder / child.name, child_path, child))
            else:
                self._hide(folder / child.name, child_path, self._upper.base_of(child_path) or child.version)
        for name in hidden:
            child_path = join(path, name)
            if self._upper.at(child_path).is_folder():
                folders.append((folder / name, child_path, None))
            else:
                self._hide(folder / name, child_path, self._upper.base_of(child_path))
        for removed, _, _ in folders:
            make_removed(removed)
        return folders

    @staticmethod
    def _hide(whiteout: SafePath, path: bytes, base: Version | None) -> None:
        make_whiteout(whiteout)
        if base is not None:
            set_base(whiteout, BaseVersion(path, base))

    def hide_below(self, folder: SafePath, path: bytes, entry: Entry) -> None:
        """A directory that comes to lie over one of the origin hides what is in that."""
        pending = [(folder, path, entry)]
        while pending:
            folder, path, entry = pending.pop()
            for child in self._lower.children(entry.id):
                over, child_path = folder / child.name, join(path, child.name)
                if child.kind is Kind.DIRECTORY:
                    if not over.exists():
                        make_removed(over)
                    if over.is_folder():
                        pending.append((over, child_path, child))
                elif not over.exists():
                    self._hide(over, child_path, child.version)
                elif base_version(over, child_path) is None:
                    set_base(over, BaseVersion(child_path, child.version))

    def take_over(self, target: bytes, source: bytes) -> None:
        """What an (empty) directory hides, the one that takes its place must hide too; the file in whose place it is,
        and each of those in it."""
        pending = [(target, source)]
        while pending:
            target, source = pending.pop()
            base = self._upper.base_of(target)
            if base is not None:
                set_base(self._upper.at(source), BaseVersion(target, base))
            for name, _ in self._names(target):
                if self._take_over_name(join(target, name), join(source, name)):
                    pending.append((join(target, name), join(source, name)))

    def _take_over_name(self, hidden: bytes, path: bytes) -> bool:
        """Whether both are folders: what is in them is to be taken over."""
        taker = self._upper.at(path)
        if self._upper.at(hidden).is_folder():
            if not taker.exists():
                taker.mkdir(0o755)
                self._upper.mark_removed(path)
            if taker.is_folder():
                return True
            self._upper.put_away(hidden)  # a file comes into its place
            return False
        base = self._upper.base_of(hidden)
        if not taker.exists():
            whiteout = self._upper.new()
            self._hide(whiteout, hidden, base)
            whiteout.rename(taker)
        elif base is not None:
            set_base(taker, BaseVersion(hidden, base))
        return False
