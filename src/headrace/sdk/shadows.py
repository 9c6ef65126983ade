"""What stays in the upper layer where a folder of the origin was moved, and what a folder that takes a place hides:
whiteouts, and folders marked as removed. The layer's lock is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.base.beneath import SafePath
from headrace.base.model import Entry, FileId, Kind
from headrace.layer.upper import Base, Upper, base_at, join, make_removed, make_whiteout, set_base

Names = Callable[[bytes], list[tuple[bytes, bool]]]


class Children(Protocol):
    """What the origin has in a folder, by the index."""

    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...


class Shadows:
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
            set_base(made, Base(path, base))
        self.fill(made, path, entry)
        return made

    def fill(self, made: SafePath, path: bytes, entry: Entry | None) -> None:
        """A folder gets what hides all that the origin has at that path."""
        hidden = {name for name, visible in self._names(path) if not visible}
        children = [] if entry is None else list(self._lower.children(entry.id))
        for child in children:
            one, at = join(path, child.name), made / child.name
            hidden.discard(child.name)
            if child.kind is Kind.DIRECTORY:
                make_removed(at)
                self.fill(at, one, child)
            else:
                make_whiteout(at)
                set_base(at, Base(one, self._upper.base_of(one) or child.version))
        for name in hidden:
            one, at = join(path, name), made / name
            if self._upper.at(one).is_folder():
                make_removed(at)
                self.fill(at, one, None)
            else:
                make_whiteout(at)
                base = self._upper.base_of(one)
                if base is not None:
                    set_base(at, Base(one, base))

    def hide_below(self, at: SafePath, path: bytes, entry: Entry) -> None:
        """A directory that comes to lie over one of the origin hides what is in that."""
        for child in self._lower.children(entry.id):
            one, there = at / child.name, join(path, child.name)
            if child.kind is Kind.DIRECTORY:
                if not one.exists():
                    make_removed(one)
                if one.is_folder():
                    self.hide_below(one, there, child)
            elif not one.exists():
                make_whiteout(one)
                set_base(one, Base(there, child.version))
            elif base_at(one, there) is None:
                set_base(one, Base(there, child.version))

    def take_over(self, target: bytes, source: bytes) -> None:
        """What an (empty) directory hides, the one that takes its place must hide too; the file in whose place it is,
        and each of those in it."""
        base = self._upper.base_of(target)
        if base is not None:
            set_base(self._upper.at(source), Base(target, base))
        for name, _ in self._names(target):
            one, other = join(target, name), join(source, name)
            if self._upper.at(one).is_folder():
                if not self._upper.at(other).exists():
                    self._upper.at(other).mkdir(0o755)
                    self._upper.mark_removed(other)
                if self._upper.at(other).is_folder():
                    self.take_over(one, other)
                else:
                    self._upper.put_away(one)  # a file comes into its place
            elif not self._upper.at(other).exists():
                base = self._upper.base_of(one)
                made = self._upper.new()
                make_whiteout(made)
                if base is not None:
                    set_base(made, Base(one, base))
                made.rename(self._upper.at(other))
            else:
                base = self._upper.base_of(one)
                if base is not None:
                    set_base(self._upper.at(other), Base(one, base))
