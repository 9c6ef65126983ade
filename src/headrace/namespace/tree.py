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
import time
from collections.abc import Callable

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    NotADirectoryPathError,
    OriginUnavailableError,
    PathNotFoundError,
    StaleIdError,
)
from headrace.base.model import ROOT_ID, Entry, FileId, Kind
from headrace.base.single_flight import SingleFlight
from headrace.namespace.mounts import Mount, MountTable
from headrace.origin.origin import ListPage, Origin
from headrace.store.index import Index, ListingWriter

log = logging.getLogger(__name__)

FOREVER_NS = (1 << 63) - 1
STALE_NS = 1
"""A listing that was taken and must be taken again; 0 is one that never was."""
LISTING_PATIENCE_S = 0.5
STALE_EXTENSION_S = 5.0
"""When the origin is away, an old listing goes on being used; it is asked again after this long."""

NamesChanged = Callable[[list[tuple[FileId, bytes]]], None]


class Namespace:
    """on_changed: told the names that no longer mean what they did."""

    def __init__(
        self, index: Index, mounts: MountTable, *, timeout_s: float, on_changed: NamesChanged
    ) -> None:
        self._index = index
        self._mounts = mounts
        self._timeout_s = timeout_s
        self._on_changed = on_changed
        self._listings: SingleFlight[FileId, None] = SingleFlight()

    async def lookup(self, parent: FileId, name: bytes) -> None:
        """The index is right for (parent, name) on return."""
        if self._fresh(parent):
            return
        listing = asyncio.ensure_future(self.list(parent))
        done, _ = await asyncio.wait([listing], timeout=LISTING_PATIENCE_S)
        if done:
            listing.result()
            return
        listing.add_done_callback(_forget_failure)
        try:
            await self._lookup_alone(parent, name)
        except (OriginUnavailableError, DeadlineExceededError):
            if self._index.fresh_until_ns(parent) == 0:
                raise  # else the old listing says what there is, as in `list`

    async def list(self, directory: FileId) -> None:
        """The index has the directory's whole listing, fresh, on return."""
        if not self._fresh(directory):
            try:
                await self._listings.run(directory, lambda: self._list_now(directory))
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

    async def refresh(self, directory: FileId) -> None:
        """Lists again, however fresh the index is, by a listing that begins now: one under way may have read
        past what changed. The old listing stays good when this one fails."""
        await self._listings.run_anew(directory, lambda: self._list_now(directory))

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
        way: list[tuple[FileId, bytes]] = []
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

    def _fresh(self, directory: FileId) -> bool:
        return self._index.fresh_until_ns(directory) > time.time_ns()

    def _origin_of(self, directory: FileId) -> tuple[str, Mount | None, str]:
        path = self._index.path_of(directory)
        if path is None:
            raise StaleIdError(f"directory {directory:x}", why="it was removed at its origin")
        text = os.fsdecode(path)
        found = self._mounts.find(text)
        return (text, found[0], found[1]) if found else (text, None, "")

    async def _list_now(self, directory: FileId) -> None:
        path, mount, key = self._origin_of(directory)
        writer = self._index.listing(directory)
        changed: list[tuple[FileId, bytes]] = []
        try:
            for name in self._mounts.below(path):
                writer.keep(os.fsencode(name))
            if mount is not None:
                deadline = Deadline.after(self._listing_limit_s())
                async for page in mount.origin.list_directory(key, deadline=deadline):
                    _add_page(writer, page)
            changed = writer.finish(FOREVER_NS if mount is None else _in_s(mount.sync_interval_s))
        finally:
            changed += writer.close()
            if changed:
                self._on_changed(changed)

    def _listing_limit_s(self) -> float:
        """A listing of millions takes many answers; each has the origin's own limit, this one bounds the whole."""
        return self._timeout_s * 10

    async def _lookup_alone(self, parent: FileId, name: bytes) -> None:
        path, mount, key = self._origin_of(parent)
        if mount is None:
            return
        child = f"{key}/{os.fsdecode(name)}" if key else os.fsdecode(name)
        deadline = Deadline.after(self._timeout_s)
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


def _names_of(path: str) -> list[bytes]:
    return [os.fsencode(name) for name in path.split("/") if name]


def _add_page(writer: ListingWriter, page: ListPage) -> None:
    folders = set(page.directories)
    files = []
    for info in page.objects:
        name = info.key.rsplit("/", 1)[-1]
        if name not in folders:  # a key that is both file and folder shows as the folder
            files.append((os.fsencode(name), info.version))
    writer.add(files, [os.fsencode(name) for name in page.directories])


async def _is_directory(origin: Origin, key: str, deadline: Deadline) -> bool:
    async for page in origin.list_directory(key, deadline=deadline):
        if page.objects or page.directories:
            return True
    return False


def _in_s(seconds: float) -> int:
    return min(FOREVER_NS, time.time_ns() + int(min(seconds, 1e9) * 1e9))


def _forget_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.warning("listing failed error=%s", task.exception())
