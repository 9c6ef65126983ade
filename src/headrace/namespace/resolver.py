"""Look names up, and ask an origin or the directory's owner if the index can't answer.

A lookup does not wait for the listing of a huge directory: after LISTING_PATIENCE_S it asks the origin for its one
name.
"""

from __future__ import annotations

import asyncio
import logging
import os

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    NotADirectoryPathError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.namespace_path import names_of, split
from headrace.base.tasks import OwnedTasks
from headrace.namespace.listings import Listings
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.namespace.pending_rows import Changed, NamesChanged, PendingRows, version_of
from headrace.namespace.tree import NameTree
from headrace.origin.origin import Origin

log = logging.getLogger(__name__)

LISTING_PATIENCE_S = 0.5


class NameResolver:
    """Looks names up. `on_changed` and `shared`: as of Listings."""

    def __init__(
        self,
        tree: NameTree,
        pending: PendingRows,
        listings: Listings,
        on_changed: NamesChanged,
        *,
        timeout_s: float,
        shared: OwnerListingClient | None = None,
    ) -> None:
        self._tree = tree
        self._index = tree.index
        self._pending = pending
        self._listings = listings
        self._on_changed = on_changed
        self._timeout_s = timeout_s
        self._shared = shared
        self._lookups = OwnedTasks(HeadraceError)

    async def resolve(self, path: bytes) -> Entry:
        """Return the entry at a path. Raise PathNotFoundError or NotADirectoryPathError."""
        entry = self._index.entry(ROOT_ID)
        for name in names_of(path):
            assert entry is not None
            if entry.kind is not Kind.DIRECTORY:
                raise NotADirectoryPathError(os.fsdecode(path), why="a component of the path is a file")
            await self.lookup(entry.id, name)
            entry = self._index.lookup(entry.id, name)
            if entry is None:
                raise PathNotFoundError(os.fsdecode(path), why="the origin has no such file")
        assert entry is not None
        return entry

    async def lookup(self, parent: FileId, name: bytes, *, for_peer: bool = False) -> None:
        """Make the index right for (parent, name). With `for_peer`, a peer asks this node as the owner, so this node
        asks no other peer."""
        if self._tree.is_fresh(parent):
            return
        listing = self._lookups.start(self._listings.list(parent, for_peer=for_peer))
        done, _ = await asyncio.wait([listing], timeout=LISTING_PATIENCE_S)
        if done:
            listing.result()
            return
        listing.add_done_callback(_log_failure)
        try:
            await self._lookup_one(parent, name, for_peer=for_peer)
        except (OriginUnavailableError, DeadlineExceededError):
            if not self._tree.is_listed(parent):
                raise  # otherwise the old listing serves, as in `Listings.list`

    async def ensure_entry(self, path: bytes, version: Version) -> Entry:
        """Return the entry of a file that a peer names with its version. If the index has no newer knowledge, it
        adopts that version; the first read at the origin detects a wrong one. Raise VersionChangedError if the origin
        has another version, PathNotFoundError if no mount answers for the path."""
        entry = self._tree.entry_at(path)
        if entry is not None and entry.version == version and entry.kind is Kind.FILE:
            return entry
        self._tree.check_mounted(path)
        directory_path, name = split(path)
        parent = self._tree.make_directories(directory_path)
        if entry is not None or self._tree.is_fresh(parent):
            await self._lookup_one(parent, name, for_peer=True)
            entry = self._index.lookup(parent, name)
            if entry is None or entry.version != version:
                raise VersionChangedError(os.fsdecode(path), why="the origin has another version")
            return entry
        id, _ = self._index.names.put_file(parent, name, version)
        adopted = self._index.entry(id)
        assert adopted is not None
        return adopted

    async def find_version(self, path: bytes, version: Version) -> Entry:
        """Return the entry of a file if its origin has exactly a version now. Only then may the index change: other
        readers must not see a name or a version that the origin has not. VersionChangedError, PathNotFoundError if no
        mount answers for the path."""
        before = self._tree.entry_at(path)
        if before is not None and before.version == version and before.kind is Kind.FILE:
            return before
        place = self._tree.mounts.find(path)
        if place is None:
            raise PathNotFoundError(os.fsdecode(path), why="no mount of this node answers for it")
        mount, key = place
        directory_path, name = split(path)
        try:
            info = await mount.origin.head(key, deadline=Deadline.after(self._timeout_s))
        except PathNotFoundError as error:
            raise VersionChangedError(
                os.fsdecode(path), why="the origin has no such object any more"
            ) from error
        if info.version != version:
            raise VersionChangedError(os.fsdecode(path), why="the origin has another version")
        is_newer_known = (
            self._pending.row(directory_path, name) is not None or self._tree.entry_at(path) != before
        )
        if is_newer_known:
            raise VersionChangedError(os.fsdecode(path), why="the file changed meanwhile")
        parent = self._tree.make_directories(directory_path)
        self._put(parent, name, info.version)
        entry = self._index.lookup(parent, name)
        assert entry is not None
        return entry

    async def _lookup_one(self, parent: FileId, name: bytes, *, for_peer: bool) -> None:
        path, mount, key = self._tree.origin_of(parent)
        if mount is None or name in self._tree.mounts.below(path):
            return
        if self._pending.row(path, name) is not None:
            self._report(self._pending.apply(path, parent))
            return
        if self._shared is not None and not for_peer:
            answer = await self._shared.lookup(path, name)
            if answer is not None:
                for row in answer.rows:
                    self._put(parent, name, None if row.kind == Kind.DIRECTORY else version_of(row))
                if not answer.rows:
                    self._remove(parent, name, path)
                return
        child = f"{key}/{os.fsdecode(name)}" if key else os.fsdecode(name)
        await self._lookup_at_origin(mount.origin, child, path, parent, name)

    async def _lookup_at_origin(
        self, origin: Origin, key: str, path: bytes, parent: FileId, name: bytes
    ) -> None:
        """Look up one name. `path` is that of its directory. A name that is an object and a prefix is a directory."""
        deadline = Deadline.after(self._timeout_s, patience_s=self._listings.patience_s(parent))
        try:
            info = await origin.head(key, deadline=deadline)
        except PathNotFoundError:
            if await _is_directory(origin, key, deadline):
                self._put(parent, name, None)
            else:
                self._remove(parent, name, path)
        else:
            known = self._index.lookup(parent, name)
            is_hidden = known is not None and known.kind is Kind.DIRECTORY
            if not is_hidden or not await _is_directory(origin, key, deadline):
                self._put(parent, name, info.version)

    def _put(self, parent: FileId, name: bytes, version: Version | None) -> None:
        """Enter a file into the index, or a directory, which has no version."""
        if version is None:
            self._index.names.ensure_directory(parent, name)
        elif self._index.names.put_file(parent, name, version)[1]:
            self._report([(parent, name)])

    def _remove(self, parent: FileId, name: bytes, path: bytes) -> None:
        if name not in self._tree.mounts.below(path) and self._index.names.remove(parent, name):
            self._report([(parent, name)])

    def _report(self, changed: Changed) -> None:
        if changed:
            self._on_changed(changed)


async def _is_directory(origin: Origin, key: str, deadline: Deadline) -> bool:
    async for page in origin.list_directory(key, deadline=deadline):
        if page.objects or page.directories:
            return True
    return False


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        is_away = isinstance(error, OriginUnavailableError | DeadlineExceededError)  # reads fail and say so
        level = logging.INFO if is_away else logging.WARNING
        log.log(level, "a slow listing failed, names are looked up one by one error=%s", error)
