"""Attach mounts to the tree of names, and detach them."""

from __future__ import annotations

import os

from headrace.base.model import ROOT_ID
from headrace.base.namespace_path import names_of
from headrace.namespace.changes import STALE_NS
from headrace.namespace.mounts import Mount
from headrace.namespace.pending_rows import Changed, NamesChanged
from headrace.namespace.tree import NameTree
from headrace.store.listing import ListingWriter
from headrace.store.schema import FOREVER_NS


class MountPoints:
    """The directories of the tree at which mounts begin."""

    def __init__(self, tree: NameTree, on_changed: NamesChanged) -> None:
        self._index = tree.index
        self._mounts = tree.mounts
        self._on_changed = on_changed

    def attach(self, mount: Mount, *, known: bool = False) -> None:
        """Add a mount to the table and the tree. Directories above it are listed again at the next access, because at
        startup all mounts are known only then. With `known`, the mount had the same origin before, so its old listings
        stay usable while the origin is unavailable."""
        self._mounts.add(mount)
        directory = ROOT_ID
        for name in names_of(os.fsencode(mount.path)):
            self._index.names.set_fresh_until(directory, STALE_NS)
            directory = self._index.names.ensure_directory(directory, name)
        self._index.names.expire_all(directory, to_ns=STALE_NS if known else 0)

    def detach(self, path: str) -> Mount:
        """Remove a mount from the table and the tree. Its names disappear at once; those of mounts below it stay."""
        mount = self._mounts.remove(path)
        ancestors: Changed = []
        directory = ROOT_ID
        for name in names_of(os.fsencode(path)):
            entry = self._index.lookup(directory, name)
            if entry is None:
                return mount
            ancestors.append((directory, name))
            directory = entry.id
        if ancestors and not self._answers(path):
            while len(ancestors) > 1 and not self._answers(path.rsplit("/", 1)[0]):
                ancestors.pop()  # this directory existed only because of this mount
                path = path.rsplit("/", 1)[0]
            self._index.names.remove(*ancestors[-1])
            self._on_changed([ancestors[-1]])
            return mount
        self._index.names.expire_all(directory)
        if self._mounts.find(path) is None:
            writer = ListingWriter(self._index.names, directory)
            for child in self._mounts.below(path):
                writer.keep(child)
            self._on_changed(writer.finish(FOREVER_NS))
        self._on_changed(ancestors[-1:])
        return mount

    def _answers(self, path: str) -> bool:
        """Return whether a path exists because of a mount at it, above it or below it."""
        return self._mounts.find(path) is not None or bool(self._mounts.below(path))
