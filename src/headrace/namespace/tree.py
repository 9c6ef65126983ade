"""Keep the index of names in step with the origins.

The index is the tree, and this module keeps its directories fresh. One listing serves all callers that need the
directory (single-flight), and is valid for the sync interval of its mount. A lookup does not wait for the listing of
a huge directory: after LISTING_PATIENCE_S it asks the origin for its one name. All calls run on the node's loop, the
only writer of the index.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Protocol

from headrace.base import boot_clock
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    NotADirectoryPathError,
    OriginUnavailableError,
    PathNotFoundError,
    StaleIdError,
    VersionChangedError,
)
from headrace.base.model import ROOT_ID, Attributes, Entry, FileId, Kind, Version
from headrace.base.single_flight import SingleFlight
from headrace.base.tasks import OwnedTasks
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.pending_rows import Changed, OriginListing, PendingRows, Rows, version_of
from headrace.namespace.refresh_queue import RefreshQueue
from headrace.origin.origin import ListPage, Origin
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.upper import join, split
from headrace.store.index import Index
from headrace.store.listing import ListingWriter
from headrace.store.schema import FOREVER_NS
from headrace.wire.peer_messages import NameRow, Names

log = logging.getLogger(__name__)

STALE_NS = 1
"""Marks a listing that exists but must be repeated; 0 marks a directory that was never listed."""
LISTING_PATIENCE_S = 0.5
STALE_EXTENSION_S = 5.0
"""How long the node uses an old listing, when the origin is unavailable, before it tries again."""

NAMES_A_PAGE = 1000
WRITER_QUERIES_MAX = 64
"""The number of directories whose writers the node queries at the same time."""


class SharedNames(Protocol):
    """Names that other nodes of the cluster list at the origin, each as the owner of some directories."""

    def ours(self, path: bytes) -> bool:
        """Return whether this node is the directory's owner, or the first owner that can be reached."""
        ...

    def listing(self, path: bytes, *, anew: bool) -> AsyncIterator[Names] | None:
        """Return the owner's listing in pages; None if this node is the owner, or no owner can be reached. Reading it
        raises HeadraceError if the owner fails."""
        ...

    async def lookup(self, path: bytes, name: bytes) -> Names | None:
        """Return one name from the owner; None if the caller must ask the origin."""
        ...


class OthersNames(Protocol):
    """Pending names: names that other nodes wrote and have not persisted yet."""

    async def rows(self, folder: bytes) -> Rows:
        """Query the writers. Never fail: for a writer that does not answer, use its last answer or nothing."""
        ...

    def any_gone(self, folder: bytes) -> bool:
        """Return whether a writer of this directory left the cluster, perhaps before it published its last names."""
        ...


NamesChanged = Callable[[list[tuple[FileId, bytes]]], None]


class Namespace:
    """The tree of names that this node serves.

    `on_changed` is called with the names whose meaning changed. `shared` queries the nodes that own a directory.
    `others` queries the nodes that wrote in it.
    """

    def __init__(
        self,
        index: Index,
        mounts: MountTable,
        *,
        timeout_s: float,
        on_changed: NamesChanged,
        shared: SharedNames | None = None,
        others: OthersNames | None = None,
    ) -> None:
        self._shared = shared
        self._others = others
        self._pending_rows = PendingRows(
            index, lambda path: set(map(os.fsencode, mounts.below(os.fsdecode(path))))
        )
        self._lookups = OwnedTasks(HeadraceError)
        self._refreshes = RefreshQueue(self._refresh_pending, self._directories_below)
        self._writer_queries = asyncio.Semaphore(WRITER_QUERIES_MAX)
        self._index = index
        self._mounts = mounts
        self._timeout_s = timeout_s
        self._on_changed = on_changed
        self._in_flight: list[Collection[bytes]] = []
        self._listings: SingleFlight[tuple[FileId, bool], None] = SingleFlight()

    def add_in_flight(self, paths: Collection[bytes]) -> None:
        """Add the paths of this node's uploads whose result at the origin is not known yet. Each listing reads the
        collection anew."""
        self._in_flight.append(paths)

    def remove_in_flight(self, paths: Collection[bytes]) -> None:
        self._in_flight = [collection for collection in self._in_flight if collection is not paths]

    async def lookup(self, parent: FileId, name: bytes, *, for_peer: bool = False) -> None:
        """Make the index right for (parent, name). With `for_peer`, a peer asks this node as the owner, so this node
        asks no other peer."""
        if self.is_fresh(parent):
            return
        listing = self._lookups.start(self.list(parent, for_peer=for_peer))
        done, _ = await asyncio.wait([listing], timeout=LISTING_PATIENCE_S)
        if done:
            listing.result()
            return
        listing.add_done_callback(_log_failure)
        try:
            await self._lookup_alone(parent, name, for_peer=for_peer)
        except (OriginUnavailableError, DeadlineExceededError):
            if self._index.fresh_until_ns(parent) == 0:
                raise  # otherwise the old listing serves, as in `list`

    async def list(self, directory: FileId, *, for_peer: bool = False) -> None:
        """Make sure that the index has a whole and fresh listing of the directory."""
        if not self.is_fresh(directory):
            try:
                await self.relist(directory, for_peer=for_peer)
            except (OriginUnavailableError, DeadlineExceededError):
                if self._index.fresh_until_ns(directory) == 0:
                    raise
                log.warning("the origin is unavailable, the old listing stays in use directory=%x", directory)
                self._index.names.set_fresh_until(directory, _in_s(STALE_EXTENSION_S))

    async def resolve(self, path: bytes) -> Entry:
        """Return the entry at a path. Raise PathNotFoundError or NotADirectoryPathError."""
        entry = self._index.entry(ROOT_ID)
        for name in [part for part in path.split(b"/") if part]:
            assert entry is not None
            if entry.kind is not Kind.DIRECTORY:
                raise NotADirectoryPathError(os.fsdecode(path), why="a component of the path is a file")
            await self.lookup(entry.id, name)
            entry = self._index.lookup(entry.id, name)
            if entry is None:
                raise PathNotFoundError(os.fsdecode(path), why="the origin has no such file")
        assert entry is not None
        return entry

    def locate(self, id: FileId) -> tuple[Mount, str, Entry]:
        """Return the mount, the key at its origin, and the entry of a file. Raise StaleIdError if the id is no longer
        valid."""
        entry, path = self._index.entry(id), self._index.path_of(id)
        location = self._mounts.find(os.fsdecode(path)) if path is not None else None
        if entry is None or location is None:
            raise StaleIdError(
                f"file {id:x}", why="the file was replaced or removed at its origin", hint="open it again"
            )
        return location[0], location[1], entry

    async def relist(self, directory: FileId, *, for_peer: bool = False) -> None:
        """List the directory again, or wait for the listing in progress. A failure leaves the old listing in
        place."""
        direct = for_peer or self._owned(directory)
        await self._listings.run(
            (directory, direct), lambda: self._list_now(directory, direct=direct, anew=False)
        )

    async def refresh(self, directory: FileId, *, for_peer: bool = False) -> None:
        """List the directory again, however fresh the index is, with a listing that begins now: one in progress may
        have read past the change. A failure leaves the old listing in place."""
        direct = for_peer or self._owned(directory)
        await self._listings.run_anew(
            (directory, direct), lambda: self._list_now(directory, direct=direct, anew=True)
        )

    async def ensure_entry(self, path: bytes, version: Version) -> Entry:
        """Return the entry of a file that a peer names with its version. If the index has no newer knowledge, it
        adopts that version; the first read at the origin detects a wrong one. Raise VersionChangedError if the origin
        has another version, PathNotFoundError if no mount answers for the path."""
        entry = self.entry_at(path)
        if entry is not None and entry.version == version and entry.kind is Kind.FILE:
            return entry
        parent, name = self._ensure_parent(path)
        if entry is not None or self.is_fresh(parent):
            await self._lookup_alone(parent, name, for_peer=True)
            entry = self._index.lookup(parent, name)
            if entry is None or entry.version != version:
                raise VersionChangedError(os.fsdecode(path), why="the origin has another version")
            return entry
        id, _ = self._index.names.put_file(parent, name, version)
        adopted = self._index.entry(id)
        assert adopted is not None
        return adopted

    def ensure_directory(self, path: bytes) -> FileId:
        """Return the id of a directory that a peer names. Raise PathNotFoundError if no mount answers for the
        path."""
        if self._mounts.find(os.fsdecode(path)) is None:
            raise PathNotFoundError(os.fsdecode(path), why="no mount of this node answers for it")
        directory = ROOT_ID
        for name in [part for part in path.split(b"/") if part]:
            directory = self._index.names.ensure_directory(directory, name)
        return directory

    def expire(self, path: bytes) -> None:
        """Mark the existing listings at and below a path as stale."""
        entry = self.entry_at(path)
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._index.names.expire_all(entry.id, to_ns=STALE_NS)

    async def relist_below(self, path: bytes, *, below: bool = True) -> None:
        """List again what was listed at a path and, with `below`, below it. A listing that fails is repeated at the
        next access."""
        top = self.entry_at(path)
        pending = [] if top is None or top.kind is not Kind.DIRECTORY else [top.id]
        while pending:
            directory = pending.pop()
            if self._index.fresh_until_ns(directory) == 0:
                continue  # never listed
            try:
                await self.relist(directory)
            except HeadraceError as error:
                log.info("listing failed directory=%x error=%s", directory, error)
            if not below:
                return
            pending.extend(e.id for e in self._index.children(directory) if e.kind is Kind.DIRECTORY)

    def paths_of(self, names: Iterable[tuple[FileId, bytes]]) -> Iterator[bytes]:
        """Yield the paths of names whose directories still exist."""
        folders: dict[FileId, bytes | None] = {}
        for parent, name in names:
            if parent not in folders:
                folders[parent] = self._index.path_of(parent)
            folder = folders[parent]
            if folder is not None:
                yield folder.rstrip(b"/") + b"/" + name

    def find_mount(self, path: bytes) -> tuple[Mount, str] | None:
        """Return the mount that answers for a path, and the key at its origin; None above all mounts."""
        return self._mounts.find(os.fsdecode(path))

    def batch(self) -> AbstractContextManager[None]:
        """Return a context that commits all changes within it to the index at once. Do not await inside it."""
        return self._index.batch()

    def _without_own(self, directory: FileId, path: bytes, page: ListPage) -> ListPage:
        """Return the page without new names that this node may have uploaded itself. Such a name may be removed here
        already, by a caller that could not know that the origin has it."""
        uploading = {
            split(child)[1] for paths in self._in_flight for child in paths if split(child)[0] == path
        }
        own = {name for name in uploading if self._index.lookup(directory, name) is None}
        if not own:
            return page
        objects = (info for info in page.objects if os.fsencode(info.key.rpartition("/")[2]) not in own)
        return ListPage(
            tuple(objects), tuple(name for name in page.directories if os.fsencode(name) not in own)
        )

    def record_put(self, path: bytes, version: Version, attributes: Attributes | None = None) -> None:
        """Record in the index that this node put a file to the origin."""
        *folders, name = [part for part in path.split(b"/") if part]
        directory = ROOT_ID
        with self._index.batch():
            for part in folders:
                directory = self._index.names.ensure_directory(directory, part)
            self._index.names.outdate(directory, name)
            self._index.names.put_file(directory, name, version, attributes)
        row = NameRow(name, int(Kind.FILE), version.size_bytes, version.mtime_ns, version.token)
        self._pending_rows.put(split(path)[0], name, row)

    def record_directory(self, path: bytes) -> None:
        """Record in the index that this node created a directory at the origin."""
        directory = ROOT_ID
        with self._index.batch():
            for part in [part for part in path.split(b"/") if part]:
                self._index.names.outdate(directory, part)
                directory = self._index.names.ensure_directory(directory, part)
        folder, name = split(path)
        self._pending_rows.put(folder, name, NameRow(name, int(Kind.DIRECTORY), 0, 0, ""))

    def record_removal(self, path: bytes, *, folder: bool = False) -> None:
        """Record in the index that this node removed a path with everything below it. `folder`: it was a directory,
        even if the index did not know it."""
        above, name = split(path)
        parent = self.entry_at(above)
        if parent is not None and name:
            self._index.names.outdate(parent.id, name, folder=folder)
            self._index.names.remove(parent.id, name)
        self._pending_rows.put(above, name, None)

    def invalidate_parent(self, path: bytes) -> None:
        """Expire the listing of the directory that contains a path."""
        self.invalidate(path.rpartition(b"/")[0] or b"/")

    def invalidate(self, path: bytes) -> None:
        """Expire the listing of a directory; the next lookup in it lists it again."""
        folder = self.entry_at(path)
        if folder is not None and self._index.fresh_until_ns(folder.id):
            self._index.names.set_fresh_until(folder.id, STALE_NS)

    async def refresh_path(self, path: bytes) -> None:
        """Refresh a directory by path. Do nothing if it was never listed or is no directory any more."""
        folder = self.entry_at(path)
        if folder is not None and self._index.fresh_until_ns(folder.id):
            await self.refresh_for_names(path)

    async def refresh_for_names(self, path: bytes) -> None:
        """Make the index show the names of a directory as the other nodes and the origin have them now. Do nothing
        for a directory that neither has."""
        tried: FileId | None = None
        while (entry := self.entry_at(path)) is not None and entry.kind is Kind.DIRECTORY:
            try:
                await self.refresh(entry.id)
            except StaleIdError:  # a listing of its parent removed or replaced it meanwhile
                if entry.id == tried:
                    raise
                tried = entry.id
            else:
                return

    def names(self, directory: FileId) -> Iterator[Names]:
        """Yield the origin's rows of a directory for a peer, in pages. The index must have its listing."""
        folder = self._index.path_of(directory) or b""
        children = self._pending_rows.at_origin(folder, self._index.children(directory))
        while len(rows := [*islice(children, NAMES_A_PAGE)]) == NAMES_A_PAGE:
            yield Names(rows=rows, good_for_s=self._good_for_s(directory), last=False)
        yield Names(rows=rows, good_for_s=self._good_for_s(directory), last=True)

    def name(self, directory: FileId, name: bytes) -> Names:
        """Return the origin's row of one name for a peer."""
        entry = self._index.lookup(directory, name)
        folder = self._index.path_of(directory) or b""
        rows = [*self._pending_rows.at_origin(folder, [] if entry is None else [entry], only=name)]
        return Names(rows=rows, good_for_s=self._good_for_s(directory), last=True)

    def attach(self, mount: Mount, *, known: bool = False) -> None:
        """Add a mount to the table and the tree. Directories above it are listed anew at the next access, because at
        startup all mounts are known only then. With `known`, the mount had the same origin before, so its old
        listings stay usable while the origin is unavailable."""
        self._mounts.add(mount)
        directory = ROOT_ID
        for name in _names_of(mount.path):
            self._index.names.set_fresh_until(directory, STALE_NS)
            directory = self._index.names.ensure_directory(directory, name)
        self._index.names.expire_all(directory, to_ns=STALE_NS if known else 0)

    def detach(self, path: str) -> Mount:
        """Remove a mount from the table and the tree. Its names disappear at once; those of mounts below it stay."""
        mount = self._mounts.remove(path)
        ancestors: Changed = []
        directory = ROOT_ID
        for name in _names_of(path):
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
                writer.keep(os.fsencode(child))
            self._on_changed(writer.finish(FOREVER_NS))
        self._on_changed(ancestors[-1:])
        return mount

    def _answers(self, path: str) -> bool:
        """Return whether a path exists because of a mount at it, above it or below it."""
        return self._mounts.find(path) is not None or bool(self._mounts.below(path))

    def is_fresh(self, directory: FileId) -> bool:
        """Return whether the index has a whole and valid listing of a directory."""
        return self._index.fresh_until_ns(directory) > boot_clock.now_ns()

    def _origin_of(self, directory: FileId) -> tuple[str, Mount | None, str]:
        path = self._index.path_of(directory)
        if path is None:
            raise StaleIdError(f"directory {directory:x}", why="the directory was removed at its origin")
        text = os.fsdecode(path)
        location = self._mounts.find(text)
        return (text, location[0], location[1]) if location else (text, None, "")

    def _good_for_s(self, directory: FileId) -> float:
        return max(0.0, (self._index.fresh_until_ns(directory) - boot_clock.now_ns()) / 1e9)

    def entry_at(self, path: bytes) -> Entry | None:
        """Return the entry that the index has at a path, without any request."""
        entry = self._index.entry(ROOT_ID)
        for name in [part for part in path.split(b"/") if part]:
            entry = None if entry is None else self._index.lookup(entry.id, name)
        return entry

    def _ensure_parent(self, path: bytes) -> tuple[FileId, bytes]:
        folder, _, name = path.rpartition(b"/")
        if self._mounts.find(os.fsdecode(path)) is None:
            raise PathNotFoundError(os.fsdecode(path), why="no mount of this node answers for it")
        directory = ROOT_ID
        for part in [part for part in folder.split(b"/") if part]:
            directory = self._index.names.ensure_directory(directory, part)
        return directory, name

    def _owned(self, directory: FileId) -> bool:
        """Return whether this node lists the directory at the origin itself."""
        path = self._index.path_of(directory)
        return self._shared is None or path is None or self._shared.ours(path)

    # ------------------------------------------------------------ pending names of other nodes

    def schedule_refresh(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - the signature of `on_changed`
        """Schedule a refresh of a directory, or of everything below it, because another node changed names there."""
        if below:
            self._refreshes.add_below(path)
        else:
            self._refreshes.add(path)

    async def stop(self) -> None:
        """Stop following the pending names of other nodes."""
        await self._refreshes.stop()

    def is_pending(self, path: bytes) -> bool:
        """Return whether a name is shown as another node wrote or removed it, not as the origin has it."""
        folder, _, name = path.rpartition(b"/")
        return self._pending_rows.row(folder or b"/", name) is not None

    async def _directories_below(self, path: bytes) -> AsyncIterator[bytes]:
        """Yield the directories of the index at and below a path. Let other tasks run in between."""
        top, count = self.entry_at(path), 0
        pending = [] if top is None or top.kind is not Kind.DIRECTORY else [(path, top.id)]
        while pending:
            folder, directory = pending.pop()
            yield folder
            for child in self._index.children(directory):
                count += 1
                if child.kind is Kind.DIRECTORY:
                    pending.append((join(folder, child.name), child.id))
                if count % NAMES_A_PAGE == 0:
                    await asyncio.sleep(0)

    async def files_below(self, path: bytes) -> AsyncIterator[Sequence[FileId]]:
        """Yield the ids of the files below a path, from the index, in batches. Let other tasks run in between."""
        top = self.entry_at(path)
        pending = [] if top is None or top.kind is not Kind.DIRECTORY else [top.id]
        while pending:
            ids: list[FileId] = []
            for child in self._index.children(pending.pop()):
                (pending if child.kind is Kind.DIRECTORY else ids).append(child.id)
                if len(ids) == NAMES_A_PAGE:
                    yield ids
                    ids = []
            yield ids
            await asyncio.sleep(0)

    async def _refresh_pending(self, folder: bytes) -> None:
        entry = self.entry_at(folder)
        if entry is None or entry.kind is not Kind.DIRECTORY:
            return
        if not self._index.fresh_until_ns(entry.id) and not self._pending_rows.knows(folder):
            return  # never listed
        await self._fetch_pending(entry.id, folder)
        if self._others is not None and self._others.any_gone(folder):
            await self.refresh(entry.id)
        elif self._pending_rows.is_leaving(folder):
            await self.relist(entry.id)
        if self._pending_rows.is_leaving(folder):  # that listing had begun before the change
            await self.refresh(entry.id)

    async def _fetch_pending(self, directory: FileId, folder: bytes) -> None:
        if self._others is not None:
            async with self._writer_queries:
                rows = await self._others.rows(folder)
            self._report(self._pending_rows.take(folder, directory, rows))

    def _report(self, changed: Changed) -> None:
        if changed:
            self._on_changed(changed)

    # ------------------------------------------------------------ listing

    async def _list_now(self, directory: FileId, *, direct: bool, anew: bool) -> None:
        """List the directory at its origin (`direct`) or at its owner. The two kinds of listing never wait for each
        other: two nodes that take each other for the owner would wait forever."""
        path, mount, key = self._origin_of(directory)
        if mount is not None:
            await self._fetch_pending(directory, os.fsencode(path))
        if mount is not None and self._shared is not None and not direct:
            pages = self._shared.listing(os.fsencode(path), anew=anew)
            if pages is not None and await self._list_from_owner(directory, path, pages):
                return
        await self._list_from_origin(directory, path, mount, key)

    async def _list_from_owner(self, directory: FileId, path: str, pages: AsyncIterator[Names]) -> bool:
        """Take the listing from the owner. Return False if the owner fails; then the caller asks the origin."""
        writer, listing = (
            ListingWriter(self._index.names, directory),
            self._pending_rows.listing(os.fsencode(path)),
        )
        changed: Changed = []
        try:
            for name in self._mounts.below(path):
                writer.keep(os.fsencode(name))
            good_for_s = 0.0
            async for page in pages:
                _add_rows(writer, listing.rest(page.rows))
                good_for_s = page.good_for_s
            changed = self._finish(directory, writer, listing, _in_s(good_for_s))
        except HeadraceError as error:
            log.info("listing at the owner of the directory failed path=%s error=%s", path, error)
            return False
        finally:
            changed += writer.close()
            if changed:
                self._on_changed(changed)
        return True

    async def _list_from_origin(self, directory: FileId, path: str, mount: Mount | None, key: str) -> None:
        writer, listing = (
            ListingWriter(self._index.names, directory),
            self._pending_rows.listing(os.fsencode(path)),
        )
        changed: Changed = []
        try:
            for name in self._mounts.below(path):
                writer.keep(os.fsencode(name))
            if mount is not None:
                deadline = self._listing_deadline(directory)
                async for origin_page in mount.origin.list_directory(key, deadline=deadline):
                    page = self._without_own(directory, os.fsencode(path), origin_page)
                    if listing.is_bare:
                        _add_page(writer, page)
                    else:
                        _add_rows(writer, listing.rest(_rows_of(page)))
            fresh_until_ns = FOREVER_NS if mount is None else _in_s(mount.sync_interval_s)
            changed = self._finish(directory, writer, listing, fresh_until_ns)
        finally:
            changed += writer.close()
            if changed:
                self._on_changed(changed)

    def _finish(
        self, directory: FileId, writer: ListingWriter, listing: OriginListing, fresh_until_ns: int
    ) -> Changed:
        """Complete the listing in the index: keep the pending names of other nodes, remove names that no node and no
        origin has."""
        changed = self._pending_rows.apply_over(listing, directory)
        changed += writer.finish(fresh_until_ns)
        listing.end()
        return changed

    def _listing_deadline(self, directory: FileId) -> Deadline:
        """Return the deadline of a whole listing. A listing of millions takes many requests, and each has the
        origin's own limit."""
        return Deadline.after(self._timeout_s * 10, patience_s=self._patience_s(directory))

    def _patience_s(self, directory: FileId) -> float:
        """Return how long to wait for an unavailable origin: shorter if an old listing can serve."""
        is_listed = self._index.fresh_until_ns(directory) != 0
        return min(self._timeout_s, PATIENCE_S) if is_listed else self._timeout_s

    async def _lookup_alone(self, parent: FileId, name: bytes, *, for_peer: bool) -> None:
        path, mount, key = self._origin_of(parent)
        if mount is None:
            return
        if self._pending_rows.row(os.fsencode(path), name) is not None:
            self._report(self._pending_rows.apply(os.fsencode(path), parent))
            return
        if self._shared is not None and not for_peer:
            answer = await self._shared.lookup(os.fsencode(path), name)
            if answer is not None:
                self._take_name(parent, name, path, answer.rows)
                return
        child = f"{key}/{os.fsdecode(name)}" if key else os.fsdecode(name)
        deadline = Deadline.after(self._timeout_s, patience_s=self._patience_s(parent))
        try:
            info = await mount.origin.head(child, deadline=deadline)
        except PathNotFoundError:
            if await _is_directory(mount.origin, child, deadline):
                self._index.names.ensure_directory(parent, name)
            elif os.fsdecode(name) not in self._mounts.below(path) and self._index.names.remove(parent, name):
                self._on_changed([(parent, name)])
            return
        _, changed = self._index.names.put_file(parent, name, info.version)
        if changed:
            self._on_changed([(parent, name)])

    def _take_name(self, parent: FileId, name: bytes, path: str, rows: Sequence[NameRow]) -> None:
        """Enter the owner's answer about one name into the index."""
        for row in rows:
            if row.kind == Kind.DIRECTORY:
                self._index.names.ensure_directory(parent, name)
            elif self._index.names.put_file(parent, name, version_of(row))[1]:
                self._on_changed([(parent, name)])
        if rows or os.fsdecode(name) in self._mounts.below(path):
            return
        if self._index.names.remove(parent, name):
            self._on_changed([(parent, name)])


def _names_of(path: str) -> list[bytes]:
    return [os.fsencode(name) for name in path.split("/") if name]


def _add_page(writer: ListingWriter, page: ListPage) -> None:
    writer.add(_files_of(page), [os.fsencode(name) for name in page.directories])


def _files_of(page: ListPage) -> list[tuple[bytes, Version]]:
    folders = set(page.directories)
    files = []
    for info in page.objects:
        name = info.key.rsplit("/", 1)[-1]
        if name not in folders:  # a key that is both a file and a directory shows as the directory
            files.append((os.fsencode(name), info.version))
    return files


def _rows_of(page: ListPage) -> list[NameRow]:
    folders = [NameRow(os.fsencode(name), int(Kind.DIRECTORY), 0, 0, "") for name in page.directories]
    files = [
        NameRow(name, int(Kind.FILE), version.size_bytes, version.mtime_ns, version.token)
        for name, version in _files_of(page)
    ]
    return folders + files


def _add_rows(writer: ListingWriter, rows: list[NameRow]) -> None:
    files = [(row.name, version_of(row)) for row in rows if row.kind == Kind.FILE]
    writer.add(files, [row.name for row in rows if row.kind == Kind.DIRECTORY])


async def _is_directory(origin: Origin, key: str, deadline: Deadline) -> bool:
    async for page in origin.list_directory(key, deadline=deadline):
        if page.objects or page.directories:
            return True
    return False


def _in_s(seconds: float) -> int:
    return min(FOREVER_NS, boot_clock.now_ns() + int(min(seconds, 1e9) * 1e9))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("listing failed error=%s", task.exception())
