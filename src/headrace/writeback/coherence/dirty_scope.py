"""Describe the directories in which a node has dirty names, as its record in the cluster does. The types are pure
values.

A record names directories, not files, and its size is bounded. When there are too many directories, the record names a
common ancestor instead, which stands for everything below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError
from headrace.base.namespace_path import split

PREFIX = "written"
"""Prefix of the keys of these records."""
DIRECTORIES_MAX = 256
"""Most directories of one record."""
BYTES_MAX = 64 << 10
"""Most bytes of all paths in one record."""


class _Record(msgspec.Struct, frozen=True):
    """Hold the JSON record of a node. Paths are percent-encoded, because names are any bytes. `folders` are single
    directories; `below` are directories with everything below them."""

    folders: list[str] = []
    below: list[str] = []


@dataclass(frozen=True, slots=True)
class DirtyScope:
    """Hold a bounded set of directories: `folders` are single directories, `below` stand for whole subtrees."""

    folders: frozenset[bytes] = frozenset()
    below: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, directories: set[bytes], below: set[bytes]) -> DirtyScope:
        """Return the smallest scope that covers all these directories and keeps the bounds of a record."""
        scope = cls(frozenset(directories), frozenset(below))._without_redundant()
        while not scope._is_small:
            scope = scope._with_deepest_merged()._without_redundant()
        return scope

    @classmethod
    def decode(cls, raw: bytes) -> DirtyScope:
        """Parse a record. Raise ClusterUnavailableError if it is invalid."""
        try:
            record = decode_json(raw, _Record)
        except msgspec.MsgspecError as error:
            raise ClusterUnavailableError(f"record {PREFIX}", why=str(error)) from error
        return cls(
            frozenset(map(unquote_to_bytes, record.folders)), frozenset(map(unquote_to_bytes, record.below))
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(_Record(sorted(map(quote, self.folders)), sorted(map(quote, self.below))))

    def covers(self, directory: bytes) -> bool:
        """Return whether the scope includes this directory."""
        return directory in self.folders or self.covers_below(directory)

    def __bool__(self) -> bool:
        """Return whether the scope includes any directory."""
        return bool(self.folders or self.below)

    def covers_below(self, directory: bytes) -> bool:
        """Return whether the scope includes this directory and everything below it."""
        return bool(self.below) and any(path in self.below for path in _self_and_ancestors(directory))

    def _without_redundant(self) -> DirtyScope:
        """Drop the directories that another entry covers already."""
        below = frozenset(
            path for path in self.below if path == b"/" or not self.covers_below(split(path)[0])
        )
        least = DirtyScope(frozenset(), below)
        return DirtyScope(frozenset(path for path in self.folders if not least.covers(path)), below)

    @property
    def _is_small(self) -> bool:
        names = [*self.folders, *self.below]
        return len(names) <= DIRECTORIES_MAX and sum(len(path) + 4 for path in names) <= BYTES_MAX

    def _with_deepest_merged(self) -> DirtyScope:
        """Replace the deepest directories by their parents, with everything below these."""
        depth = max(_depth(path) for path in (*self.folders, *self.below))
        deepest = {path for path in (*self.folders, *self.below) if _depth(path) == depth}
        return DirtyScope(
            self.folders - deepest, (self.below - deepest) | {split(path)[0] for path in deepest}
        )


def _depth(path: bytes) -> int:
    return 0 if path == b"/" else path.count(b"/")


def with_ancestors(directories: Iterable[bytes]) -> set[bytes]:
    """Return directories with all that they lie in."""
    paths: set[bytes] = set()
    for directory in directories:
        path = directory
        while path not in paths:
            paths.add(path)
            path = split(path)[0]
    return paths


def _self_and_ancestors(path: bytes) -> list[bytes]:
    paths = [path]
    while path != b"/":
        path = split(path)[0]
        paths.append(path)
    return paths
