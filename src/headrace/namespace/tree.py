"""Names: making the index say what the origins say.

The index is the tree; this module keeps its directories fresh. A directory is listed whole, once, however many ask
(single-flight), and is good for its mount's sync interval. A lookup doesn't wait for the listing of a huge
directory: after LISTING_PATIENCE_S it asks for its one name.
All calls run on the node's loop, the only writer of the index.
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
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.pending_rows import Changed, OriginListing, PendingRows, Rows, version_of
from headrace.namespace.refresh_queue import RefreshQueue
from headrace.origin.origin import ListPage, Origin
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.upper import join, split
from headrace.store.index import Index, ListingWriter
from headrace.store.schema import FOREVER_NS
from headrace.wire.peer_messages import NameRow, Names

log = logging.getLogger(__name__)

STALE_NS = 1
"""A listing that was taken and must be taken again; 0 is one that never was."""
LISTING_PATIENCE_S = 0.5
STALE_EXTENSION_S = 5.0
"""When the origin is away, an old listing goes on being used; it is asked again after this long."""

NAMES_A_PAGE = 1000
OTHERS_ASKED_MAX = 64
"""Folders of which other nodes are asked at one time, what they wrote there."""


class SharedNames(Protocol):
    """What other nodes of the cluster know of directories."""

    def ours(self, path: bytes) -> bool:
        """Whether this node is the owner, or the first that answers."""
        ...

    def listing(self, path: bytes, *, anew: bool) -> AsyncIterator[Names] | None:
        """From the directory's owner; None when that is this node, or nobody that answers. HeadraceError while it
        is read: the owner can't tell."""
        ...

    async def lookup(self, path: bytes, name: bytes) -> Names | None:
        """One name, likewise; None: ask the origin."""
        ...


class OthersNames(Protocol):
    """What other nodes wrote and have not persisted yet."""

    async def rows(self, folder: bytes) -> Rows:
        """Asks them. Never fails: who does not answer has nothing, or what it said last."""
        ...

    def any_gone(self, folder: bytes) -> bool:
        """Whether one that wrote in a folder is gone: what it put there last it may have told nobody of."""
        ...


NamesChanged = Callable[[list[tuple[FileId, bytes]]], None]


class Namespace:
    """on_changed: told the names that no longer mean what they did. shared: asks the nodes that own a directory.
    others: asks those that wrote in it."""

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
        self._overlays = PendingRows(
            index, lambda path: set(map(os.fsencode, mounts.below(os.fsdecode(path))))
        )
        self._stirs = RefreshQueue(self._see_others, self._folders_below)
        self._asking_others = asyncio.Semaphore(OTHERS_ASKED_MAX)
        self._index = index
        self._mounts = mounts
        self._timeout_s = timeout_s
        self._on_changed = on_changed
        self.unsure: list[Collection[bytes]] = []
        """Where this node puts something, or did, and does not know yet whether the origin has it."""
        self._listings: SingleFlight[tuple[FileId, bool], None] = SingleFlight()

    async def lookup(self, parent: FileId, name: bytes, *, for_peer: bool = False) -> None:
        """The index is right for (parent, name) on return. for_peer: a peer asks us as the owner, so no other one is
        asked."""
        if self.is_fresh(parent):
            return
        listing = asyncio.ensure_future(self.list(parent, for_peer=for_peer))
        done, _ = await asyncio.wait([listing], timeout=LISTING_PATIENCE_S)
        if done:
            listing.result()
            return
        listing.add_done_callback(_forget_failure)
        try:
            await self._lookup_alone(parent, name, for_peer=for_peer)
        except (OriginUnavailableError, DeadlineExceededError):
            if self._index.fresh_until_ns(parent) == 0:
                raise  # else the old listing says what there is, as in `list`

    async def list(self, directory: FileId, *, for_peer: bool = False) -> None:
        """The index has the directory's whole listing, fresh, on return."""
        if not self.is_fresh(directory):
            try:
                await self.relist(directory, for_peer=for_peer)
            except (OriginUnavailableError, DeadlineExceededError):
                if self._index.fresh_until_ns(directory) == 0:
                    raise
                log.warning("origin is away, using the old listing directory=%x", directory)
                self._index.set_fresh_until(directory, _in_s(STALE_EXTENSION_S))

    async def resolve(self, path: bytes) -> Entry:
        """PathNotFoundError, NotADirectoryPathError."""
        found = self._index.entry(ROOT_ID)
        for name in [part for part in path.split(b"/") if part]:
            assert found is not None
            if found.kind is not Kind.DIRECTORY:
                raise NotADirectoryPathError(os.fsdecode(path), why="a part of it is a file")
            await self.lookup(found.id, name)
            found = self._index.lookup(found.id, name)
            if found is None:
                raise PathNotFoundError(os.fsdecode(path), why="no such file at its origin")
        assert found is not None
        return found

    def locate(self, id: FileId) -> tuple[Mount, str, Entry]:
        """Where a file's bytes are. PathNotFoundError when the id names nothing any more."""
        entry, path = self._index.entry(id), self._index.path_of(id)
        found = self._mounts.find(os.fsdecode(path)) if path is not None else None
        if entry is None or found is None:
            raise StaleIdError(
                f"file {id:x}", why="it was replaced or removed at its origin", hint="open it again"
            )
        return found[0], found[1], entry

    async def relist(self, directory: FileId, *, for_peer: bool = False) -> None:
        """Lists again, or waits for the listing that is under way. The old one stays when this one fails."""
        direct = for_peer or self._owned(directory)
        await self._listings.run(
            (directory, direct), lambda: self._list_now(directory, direct=direct, anew=False)
        )

    async def refresh(self, directory: FileId, *, for_peer: bool = False) -> None:
        """Lists again, however fresh the index is, by a listing that begins now: one under way may have read
        past what changed. The old listing stays good when this one fails."""
        direct = for_peer or self._owned(directory)
        await self._listings.run_anew(
            (directory, direct), lambda: self._list_now(directory, direct=direct, anew=True)
        )

    async def claim(self, path: bytes, version: Version) -> Entry:
        """A file that a peer names with its version, which the index takes from it where it knows nothing else: a
        wrong version is found by the origin at the first read. VersionChangedError when the origin has another one,
        PathNotFoundError for what no mount answers for."""
        entry = self._known(path)
        if entry is not None and entry.version == version and entry.kind is Kind.FILE:
            return entry
        parent, name = self._claim_folder(path)
        if entry is not None or self.is_fresh(parent):
            await self._lookup_alone(parent, name, for_peer=True)
            entry = self._index.lookup(parent, name)
            if entry is None or entry.version != version:
                raise VersionChangedError(os.fsdecode(path), why="the origin has another version")
            return entry
        id, _ = self._index.put_file(parent, name, version)
        found = self._index.entry(id)
        assert found is not None
        return found

    def claim_directory(self, path: bytes) -> FileId:
        """A directory that a peer names. PathNotFoundError for what no mount answers for."""
        if self._mounts.find(os.fsdecode(path)) is None:
            raise PathNotFoundError(os.fsdecode(path), why="no mount of this node answers for it")
        directory = ROOT_ID
        for name in [part for part in path.split(b"/") if part]:
            directory = self._index.ensure_directory(directory, name)
        return directory

    def expire(self, path: bytes) -> None:
        """Listings at and below a path that were taken are stale."""
        entry = self._known(path)
        if entry is not None and entry.kind is Kind.DIRECTORY:
            self._index.expire_all(entry.id, to_ns=STALE_NS)

    async def relist_below(self, path: bytes, *, below: bool = True) -> None:
        """Lists again what was listed at and below a path, or at it only. What fails is listed when somebody looks."""
        top = self._known(path)
        pending = [] if top is None or top.kind is not Kind.DIRECTORY else [top.id]
        while pending:
            directory = pending.pop()
            if self._index.fresh_until_ns(directory) == 0:
                continue  # nobody looked
            try:
                await self.relist(directory)
            except HeadraceError as error:
                log.info("listing failed directory=%x error=%s", directory, error)
            if not below:
                return
            pending.extend(e.id for e in self._index.children(directory) if e.kind is Kind.DIRECTORY)

    def known(self, path: bytes) -> Entry | None:
        """What the index has at a path; nobody is asked."""
        return self._known(path)

    def paths_of(self, names: Iterable[tuple[FileId, bytes]]) -> Iterator[bytes]:
        """Of names in directories that are still there."""
        folders: dict[FileId, bytes | None] = {}
        for parent, name in names:
            if parent not in folders:
                folders[parent] = self._index.path_of(parent)
            folder = folders[parent]
            if folder is not None:
                yield folder.rstrip(b"/") + b"/" + name

    def place_of(self, path: bytes) -> tuple[Mount, str] | None:
        """The mount that answers for a path, and the key there; None above all mounts."""
        return self._mounts.find(os.fsdecode(path))

    def together(self) -> AbstractContextManager[None]:
        """What is told within is one commit of the index. Nothing may be waited for."""
        return self._index.batch()

    def _without_own(self, directory: FileId, path: bytes, page: ListPage) -> ListPage:
        """A page, but for what is new in it and perhaps of this node's own putting: that may be removed here by now, by
        who could not know that the origin has it."""
        perhaps = {split(one)[1] for paths in self.unsure for one in paths if split(one)[0] == path}
        own = {name for name in perhaps if self._index.lookup(directory, name) is None}
        if not own:
            return page
        objects = (one for one in page.objects if os.fsencode(one.key.rpartition("/")[2]) not in own)
        return ListPage(
            tuple(objects), tuple(name for name in page.directories if os.fsencode(name) not in own)
        )

    def was_put(self, path: bytes, version: Version, attributes: Attributes | None = None) -> None:
        """This node put a file there: the index has it on return."""
        *folders, name = [part for part in path.split(b"/") if part]
        directory = ROOT_ID
        with self._index.batch():
            for part in folders:
                directory = self._index.ensure_directory(directory, part)
            self._index.outdate(directory, name)
            self._index.put_file(directory, name, version, attributes)
        row = NameRow(name, int(Kind.FILE), version.size_bytes, version.mtime_ns, version.token)
        self._overlays.put(split(path)[0], name, row)

    def was_made(self, path: bytes) -> None:
        """This node made a folder there: so does the index."""
        directory = ROOT_ID
        with self._index.batch():
            for part in [part for part in path.split(b"/") if part]:
                self._index.outdate(directory, part)
                directory = self._index.ensure_directory(directory, part)
        folder, name = split(path)
        self._overlays.put(folder, name, NameRow(name, int(Kind.DIRECTORY), 0, 0, ""))

    def was_removed(self, path: bytes, *, folder: bool = False) -> None:
        """This node removed what was there, with all below it: so does the index. folder: it was one, also when the
        index did not know it yet."""
        above, name = split(path)
        parent = self._known(above)
        if parent is not None and name:
            self._index.outdate(parent.id, name, folder=folder)
            self._index.remove(parent.id, name)
        self._overlays.put(above, name, None)

    def look_again(self, path: bytes) -> None:
        """The next who asks for a name of the folder that a path is in has it listed."""
        self.look_again_in(path.rpartition(b"/")[0] or b"/")

    def look_again_in(self, path: bytes) -> None:
        """The same of the folder itself."""
        folder = self._known(path)
        if folder is not None and self._index.fresh_until_ns(folder.id):
            self._index.set_fresh_until(folder.id, STALE_NS)

    async def refresh_path(self, path: bytes) -> None:
        """As `refresh`; nothing for a directory that was never listed, or is none any more."""
        folder = self._known(path)
        if folder is not None and self._index.fresh_until_ns(folder.id):
            await self.refresh_for_names(path)

    async def refresh_for_names(self, path: bytes) -> None:
        """The index knows the names of a folder as other nodes and the origin have them now, on return. Nothing for a
        folder that neither has."""
        tried: FileId | None = None
        while (found := self._known(path)) is not None and found.kind is Kind.DIRECTORY:
            try:
                await self.refresh(found.id)
            except StaleIdError:  # its parent was listed meanwhile: it is gone, or another one
                if found.id == tried:
                    raise
                tried = found.id
            else:
                return

    def names(self, directory: FileId) -> Iterator[Names]:
        """What a peer is told of a directory, of which the index has the listing. In pages."""
        folder = self._index.path_of(directory) or b""
        children = self._overlays.at_origin(folder, self._index.children(directory))
        while len(rows := [*islice(children, NAMES_A_PAGE)]) == NAMES_A_PAGE:
            yield Names(rows=rows, good_for_s=self._good_for_s(directory), last=False)
        yield Names(rows=rows, good_for_s=self._good_for_s(directory), last=True)

    def name(self, directory: FileId, name: bytes) -> Names:
        """The same of one name."""
        found = self._index.lookup(directory, name)
        folder = self._index.path_of(directory) or b""
        rows = [*self._overlays.at_origin(folder, [] if found is None else [found], only=name)]
        return Names(rows=rows, good_for_s=self._good_for_s(directory), last=True)

    def attach(self, mount: Mount, *, known: bool = False) -> None:
        """Enters a mount into table and tree. Directories above it are listed anew by whoever asks next: only
        then are all mounts known, at a start. known: the same origin was there before, so its listings may be used
        while it is away."""
        self._mounts.add(mount)
        directory = ROOT_ID
        for name in _names_of(mount.path):
            self._index.set_fresh_until(directory, STALE_NS)
            directory = self._index.ensure_directory(directory, name)
        self._index.expire_all(directory, to_ns=STALE_NS if known else 0)

    def detach(self, path: str) -> Mount:
        """Takes a mount out of both; its names are gone at once, those of mounts below it stay."""
        mount = self._mounts.remove(path)
        way: Changed = []
        directory = ROOT_ID
        for name in _names_of(path):
            entry = self._index.lookup(directory, name)
            if entry is None:
                return mount
            way.append((directory, name))
            directory = entry.id
        if way and not self._answers(path):
            while len(way) > 1 and not self._answers(path.rsplit("/", 1)[0]):
                way.pop()  # a directory that was there for this mount's sake
                path = path.rsplit("/", 1)[0]
            self._index.remove(*way[-1])
            self._on_changed([way[-1]])
            return mount
        self._index.expire_all(directory)
        if self._mounts.find(path) is None:
            writer = self._index.listing(directory)
            for child in self._mounts.below(path):
                writer.keep(os.fsencode(child))
            self._on_changed(writer.finish(FOREVER_NS))
        self._on_changed(way[-1:])
        return mount

    def _answers(self, path: str) -> bool:
        """Whether a path is there because of some mount: at it, above it or below it."""
        return self._mounts.find(path) is not None or bool(self._mounts.below(path))

    def is_fresh(self, directory: FileId) -> bool:
        """Whether the index has the whole listing of a directory, and it is good."""
        return self._index.fresh_until_ns(directory) > boot_clock.now_ns()

    def _origin_of(self, directory: FileId) -> tuple[str, Mount | None, str]:
        path = self._index.path_of(directory)
        if path is None:
            raise StaleIdError(f"directory {directory:x}", why="it was removed at its origin")
        text = os.fsdecode(path)
        found = self._mounts.find(text)
        return (text, found[0], found[1]) if found else (text, None, "")

    def _good_for_s(self, directory: FileId) -> float:
        return max(0.0, (self._index.fresh_until_ns(directory) - boot_clock.now_ns()) / 1e9)

    def _known(self, path: bytes) -> Entry | None:
        """What the index has at a path; nobody is asked."""
        found = self._index.entry(ROOT_ID)
        for name in [part for part in path.split(b"/") if part]:
            found = None if found is None else self._index.lookup(found.id, name)
        return found

    def _claim_folder(self, path: bytes) -> tuple[FileId, bytes]:
        folder, _, name = path.rpartition(b"/")
        if self._mounts.find(os.fsdecode(path)) is None:
            raise PathNotFoundError(os.fsdecode(path), why="no mount of this node answers for it")
        directory = ROOT_ID
        for part in [part for part in folder.split(b"/") if part]:
            directory = self._index.ensure_directory(directory, part)
        return directory, name

    def _owned(self, directory: FileId) -> bool:
        """Whether the origin is asked for it by this node, and no other one."""
        path = self._index.path_of(directory)
        return self._shared is None or path is None or self._shared.ours(path)

    # ------------------------------------------------------------ what other nodes wrote

    def stirred(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - as the records call it
        """Another node wrote something in a folder, or below it: where somebody looked, the index is made right."""
        if below:
            self._stirs.add_below(path)
        else:
            self._stirs.add(path)

    def stop(self) -> None:
        """What other nodes write is not seen any more."""
        self._stirs.stop()

    def is_written_over(self, path: bytes) -> bool:
        """Whether a name is shown as another node wrote, or removed, it, and not as the origin has it."""
        folder, _, name = path.rpartition(b"/")
        return self._overlays.row(folder or b"/", name) is not None

    async def _folders_below(self, path: bytes) -> AsyncIterator[bytes]:
        """Of the index. Gives others their turn."""
        top, seen = self._known(path), 0
        pending = [] if top is None or top.kind is not Kind.DIRECTORY else [(path, top.id)]
        while pending:
            folder, directory = pending.pop()
            yield folder
            for child in self._index.children(directory):
                seen += 1
                if child.kind is Kind.DIRECTORY:
                    pending.append((join(folder, child.name), child.id))
                if seen % NAMES_A_PAGE == 0:
                    await asyncio.sleep(0)

    async def files_below(self, path: bytes) -> AsyncIterator[Sequence[FileId]]:
        """Of the index, some at a time. Gives others their turn."""
        top = self._known(path)
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

    async def _see_others(self, folder: bytes) -> None:
        found = self._known(folder)
        if found is None or found.kind is not Kind.DIRECTORY:
            return
        if not self._index.fresh_until_ns(found.id) and not self._overlays.knows(folder):
            return  # nobody looked
        await self._take_others(found.id, folder)
        if self._others is not None and self._others.any_gone(folder):
            await self.refresh(found.id)
        elif self._overlays.is_leaving(folder):
            await self.relist(found.id)
        if self._overlays.is_leaving(folder):  # the listing had begun before
            await self.refresh(found.id)

    async def _take_others(self, directory: FileId, folder: bytes) -> None:
        if self._others is not None:
            async with self._asking_others:
                rows = await self._others.rows(folder)
            self._told(self._overlays.take(folder, directory, rows))

    def _told(self, changed: Changed) -> None:
        if changed:
            self._on_changed(changed)

    # ------------------------------------------------------------ listing

    async def _list_now(self, directory: FileId, *, direct: bool, anew: bool) -> None:
        """direct: from the origin. Listings of the two kinds don't wait for each other: two nodes that take one
        another for the owner would wait for ever."""
        path, mount, key = self._origin_of(directory)
        if mount is not None:
            await self._take_others(directory, os.fsencode(path))
        if mount is not None and self._shared is not None and not direct:
            pages = self._shared.listing(os.fsencode(path), anew=anew)
            if pages is not None and await self._list_from_owner(directory, path, pages):
                return
        await self._list_from_origin(directory, path, mount, key)

    async def _list_from_owner(self, directory: FileId, path: str, pages: AsyncIterator[Names]) -> bool:
        """False when the owner can't tell: then the origin is asked."""
        writer, beneath = self._index.listing(directory), self._overlays.listing(os.fsencode(path))
        changed: Changed = []
        try:
            for name in self._mounts.below(path):
                writer.keep(os.fsencode(name))
            good_for_s = 0.0
            async for page in pages:
                _add_rows(writer, beneath.rest(page.rows))
                good_for_s = page.good_for_s
            changed = self._finish(directory, writer, beneath, _in_s(good_for_s))
        except HeadraceError as error:
            log.info("directory's owner did not tell path=%s error=%s", path, error)
            return False
        finally:
            changed += writer.close()
            if changed:
                self._on_changed(changed)
        return True

    async def _list_from_origin(self, directory: FileId, path: str, mount: Mount | None, key: str) -> None:
        writer, beneath = self._index.listing(directory), self._overlays.listing(os.fsencode(path))
        changed: Changed = []
        try:
            for name in self._mounts.below(path):
                writer.keep(os.fsencode(name))
            if mount is not None:
                deadline = self._listing_deadline(directory)
                async for found in mount.origin.list_directory(key, deadline=deadline):
                    page = self._without_own(directory, os.fsencode(path), found)
                    if beneath.is_bare:
                        _add_page(writer, page)
                    else:
                        _add_rows(writer, beneath.rest(_rows_of(page)))
            fresh_until_ns = FOREVER_NS if mount is None else _in_s(mount.sync_interval_s)
            changed = self._finish(directory, writer, beneath, fresh_until_ns)
        finally:
            changed += writer.close()
            if changed:
                self._on_changed(changed)

    def _finish(
        self, directory: FileId, writer: ListingWriter, beneath: OriginListing, fresh_until_ns: int
    ) -> Changed:
        """All pages are taken in: what others wrote is kept, what nobody has goes."""
        changed = self._overlays.apply_over(beneath, directory)
        changed += writer.finish(fresh_until_ns)
        beneath.end()
        return changed

    def _listing_deadline(self, directory: FileId) -> Deadline:
        """A listing of millions takes many answers; each has the origin's own limit, this one bounds the whole."""
        return Deadline.after(self._timeout_s * 10, patience_s=self._patience_s(directory))

    def _patience_s(self, directory: FileId) -> float:
        """How long an origin that is away is waited for. An old listing can be used instead."""
        known = self._index.fresh_until_ns(directory) != 0
        return min(self._timeout_s, PATIENCE_S) if known else self._timeout_s

    async def _lookup_alone(self, parent: FileId, name: bytes, *, for_peer: bool) -> None:
        path, mount, key = self._origin_of(parent)
        if mount is None:
            return
        if self._overlays.row(os.fsencode(path), name) is not None:
            self._told(self._overlays.apply(os.fsencode(path), parent))
            return
        if self._shared is not None and not for_peer:
            found = await self._shared.lookup(os.fsencode(path), name)
            if found is not None:
                self._take_name(parent, name, path, found.rows)
                return
        child = f"{key}/{os.fsdecode(name)}" if key else os.fsdecode(name)
        deadline = Deadline.after(self._timeout_s, patience_s=self._patience_s(parent))
        try:
            info = await mount.origin.head(child, deadline=deadline)
        except PathNotFoundError:
            if await _is_directory(mount.origin, child, deadline):
                self._index.ensure_directory(parent, name)
            elif os.fsdecode(name) not in self._mounts.below(path) and self._index.remove(parent, name):
                self._on_changed([(parent, name)])
            return
        _, changed = self._index.put_file(parent, name, info.version)
        if changed:
            self._on_changed([(parent, name)])

    def _take_name(self, parent: FileId, name: bytes, path: str, rows: Sequence[NameRow]) -> None:
        """What a directory's owner says of one name."""
        for row in rows:
            if row.kind == Kind.DIRECTORY:
                self._index.ensure_directory(parent, name)
            elif self._index.put_file(parent, name, version_of(row))[1]:
                self._on_changed([(parent, name)])
        if rows or os.fsdecode(name) in self._mounts.below(path):
            return
        if self._index.remove(parent, name):
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
        if name not in folders:  # a key that is both file and folder shows as the folder
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


def _forget_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("listing failed error=%s", task.exception())
