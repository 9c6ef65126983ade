"""Look a single name up at its origin, because the origin reports a change of it.

One HEAD takes the place of a listing of the whole directory. A listing that began before its answer does not undo it.
An answer that is older than what the index learnt meanwhile is dropped, and the name is looked up again. A name that is
a directory, and one that another node wrote, need a listing.
"""

from __future__ import annotations

import logging
import os

from headrace.base.deadline import Deadline
from headrace.base.errors import PathNotFoundError, StaleIdError
from headrace.base.model import Entry, FileId, Kind, Version
from headrace.base.namespace_path import NAME_BYTES_MAX
from headrace.base.single_flight import SingleFlight
from headrace.namespace.changes import NameChanges
from headrace.namespace.listings import Listings
from headrace.namespace.mounts import Mount
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.namespace.pending_rows import NamesChanged, PendingRows, version_of
from headrace.namespace.tree import NameTree
from headrace.origin.origin import HIDDEN
from headrace.wire.peer_messages import Names

log = logging.getLogger(__name__)

ATTEMPTS = 3
"""Times that a name may change during its lookup before a listing decides."""


class _IsDirectoryError(Exception):
    """The name is a directory at the owner."""


class NameChecks:
    """Checks names. `on_changed` and `shared`: as of Listings."""

    def __init__(
        self,
        tree: NameTree,
        pending: PendingRows,
        changes: NameChanges,
        listings: Listings,
        on_changed: NamesChanged,
        *,
        timeout_s: float,
        shared: OwnerListingClient | None = None,
    ) -> None:
        self._tree = tree
        self._index = tree.index
        self._pending = pending
        self._changes = changes
        self._listings = listings
        self._on_changed = on_changed
        self._timeout_s = timeout_s
        self._shared = shared
        self._in_progress: SingleFlight[tuple[FileId, bytes, bool], bool] = SingleFlight()

    async def check(self, directory_path: bytes, name: bytes, *, for_peer: bool = False) -> bool:
        """Make the index right for a name, by a lookup that begins now: one in progress may have read past the change.
        Return False if only a listing can tell. Raise HeadraceError of the origin. for_peer: a peer asks this node as
        the owner, so this node asks no other peer."""
        directory = self._tree.directory_at(directory_path)
        if directory is None or not 0 < len(name) <= NAME_BYTES_MAX or os.fsdecode(name).startswith(HIDDEN):
            return True
        direct = for_peer or self._shared is None or self._shared.owns(directory_path)
        return await self._in_progress.run_anew(
            (directory, name, direct), lambda: self._check(directory, name, direct=direct)
        )

    async def check_for_peer(self, directory_path: bytes, name: bytes) -> None:
        """Make the index of this node, the owner of a directory, right for a name that a peer asks for."""
        if not await self.check(directory_path, name, for_peer=True):
            directory = self._tree.directory_at(directory_path)
            if directory is not None:
                await self._listings.refresh(directory, for_peer=True)

    async def _check(self, directory: FileId, name: bytes, *, direct: bool) -> bool:
        for _ in range(ATTEMPTS):
            try:
                path, mount, key = self._tree.origin_of(directory)
            except StaleIdError:  # the directory is gone, and its names with it
                return True
            if mount is None or name in self._tree.mounts.below(path):
                return True
            before = self._index.lookup(directory, name)
            if self._pending.row(path, name) is not None or _is_directory(before):
                return False
            try:
                version = await self._ask(directory, path, mount, key, name, direct=direct)
            except _IsDirectoryError:
                return False
            is_current = (
                self._index.path_of(directory) == path and self._index.lookup(directory, name) == before
            )
            if is_current and self._pending.row(path, name) is None:
                if before is not None or not self._changes.is_uploading(path, name):
                    self._store(directory, name, before, version)
                return True
        return False

    async def _ask(
        self, directory: FileId, path: bytes, mount: Mount, key: str, name: bytes, *, direct: bool
    ) -> Version | None:
        """Return the version of a file as the owner of its directory, or the origin has it; None: there is none."""
        if self._shared is not None and not direct:
            answer = await self._shared.lookup(path, name, anew=True)
            if answer is not None:
                return _version_in(answer, name)
        child = f"{key}/{os.fsdecode(name)}" if key else os.fsdecode(name)
        deadline = Deadline.after(self._timeout_s, patience_s=self._listings.patience_s(directory))
        try:
            return (await mount.origin.head(child, deadline=deadline)).version
        except PathNotFoundError:
            return None

    def _store(self, directory: FileId, name: bytes, before: Entry | None, version: Version | None) -> None:
        with self._index.batch():
            self._index.names.settle(directory, name)
            if version is None:
                is_changed = self._index.names.remove(directory, name)
            else:
                is_changed = self._index.names.put_file(directory, name, version)[1] or before is None
        if is_changed:
            self._on_changed([(directory, name)])


def _is_directory(entry: Entry | None) -> bool:
    return entry is not None and entry.kind is Kind.DIRECTORY


def _version_in(answer: Names, name: bytes) -> Version | None:
    for row in answer.rows:
        if row.name == name:
            if row.kind == Kind.DIRECTORY:
                raise _IsDirectoryError
            return version_of(row)
    return None
