"""Map objects that origins report as changed to the names of the namespace that show them."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from itertools import islice

from headrace.base.namespace_path import split
from headrace.events.changes import OriginChange
from headrace.namespace.mounts import Mount
from headrace.namespace.tree import NameTree

NAMES_FEW = 16
"""Changed names of a directory that are looked up one by one, whatever its size. So many HEADs cost about as much as
one page of a listing."""
NAMES_MANY = 256
"""The same for a directory with more names than a page has."""
PAGE_NAMES = 1000


class Scope(enum.IntEnum):
    """Says what may have changed at a path. NAME: only what the path itself names. DIRECTORY: the names in the
    directory of that path. BELOW: these, and all that lies below them."""

    NAME = 0
    DIRECTORY = 1
    BELOW = 2


Target = tuple[bytes, Scope]


class ReportedPaths:
    """Maps reported objects to paths. The mounts are those of a moment."""

    def __init__(self, tree: NameTree) -> None:
        self._tree = tree
        self._mounts = tree.mounts

    def targets(self, changes: Iterable[OriginChange]) -> set[Target]:
        """Return the names that may have changed. The marker of a directory stands for the directory above it, and so
        does a name of a far cluster, which may report one of many. An object that no mount shows changes nothing."""
        tops: dict[tuple[str, str], list[tuple[Mount, bytes]]] = {}
        for mount in self._mounts.all():
            scheme, _, rest = mount.url.partition("://")
            bucket, _, above = rest.partition("/")
            tops.setdefault((scheme, bucket), []).append((mount, os.fsencode(above)))
        targets: set[Target] = set()
        for change in changes:
            key = change.key.rstrip(b"/")  # an object `a/` is a marker
            for mount, prefix in tops.get((change.scheme, change.bucket), ()):
                if prefix and not key.startswith(prefix + b"/"):
                    continue
                path = os.fsencode(mount.path).rstrip(b"/") + b"/" + key[len(prefix) :].lstrip(b"/")
                place = self._mounts.find(path)
                if place is not None and place[0] is mount:
                    is_name = key == change.key and change.scheme != "headrace"
                    targets.add((path, Scope.NAME) if is_name else (split(path)[0], Scope.DIRECTORY))
        return targets

    def joined(self, targets: Iterable[Target]) -> set[Target]:
        """Return the targets with one for a directory in the place of many names in it."""
        names: dict[bytes, list[Target]] = {}
        others: set[Target] = set()
        for target in targets:
            if target[1] is Scope.NAME:
                names.setdefault(split(target[0])[0], []).append(target)
            else:
                others.add(target)
        for directory, changed in names.items():
            if len(changed) > self.names_max(directory, len(changed)):
                others.add((directory, Scope.DIRECTORY))
            else:
                others.update(changed)
        return others

    def names_max(self, directory_path: bytes, count: int) -> int:
        """Return how many changed names of a directory are looked up one by one. count: how many there are, at least; a
        few are not worth the look at its size."""
        directory = None if count <= NAMES_FEW else self._tree.directory_at(directory_path)
        if directory is None:
            return NAMES_FEW
        children = self._tree.index.children(directory)
        return NAMES_FEW if next(islice(children, PAGE_NAMES, None), None) is None else NAMES_MANY

    def top_of(self, path: bytes) -> bytes:
        """Return the path of the mount that answers for a path."""
        place = self._mounts.find(path)
        return b"/" if place is None else os.fsencode(place[0].path)
