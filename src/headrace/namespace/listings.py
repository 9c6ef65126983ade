"""Keep the directories of the index in step with the origins.

One listing serves all callers that need a directory (single-flight), and is valid for as long as `freshness.py` says.
It comes from the origin, or from the node that owns the directory. All calls run on the node's loop, the only writer of
the index.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from headrace.base import boot_clock
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, HeadraceError, OriginUnavailableError, StaleIdError
from headrace.base.model import FileId, Kind, Version
from headrace.base.single_flight import SingleFlight
from headrace.namespace.changes import NameChanges
from headrace.namespace.freshness import Freshness
from headrace.namespace.mounts import Mount
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.namespace.pending_rows import NamesChanged, OriginListing, PendingRows, Rows, version_of
from headrace.namespace.tree import NameTree
from headrace.origin.origin import ListPage
from headrace.origin.retry import PATIENCE_S
from headrace.store.listing import ListingWriter
from headrace.store.schema import FOREVER_NS
from headrace.wire.peer_messages import NameRow, Names

log = logging.getLogger(__name__)

STALE_EXTENSION_S = 5.0
"""Seconds for which the node uses an old listing, when the origin is unavailable, before it tries again."""
WRITER_QUERIES_MAX = 64
"""Directories whose writers the node queries at the same time."""


CONFIRMED_AMONG = 512
"""Known names of a directory among which one is chosen for a lookup, when the listing has none."""


class OthersNames(Protocol):
    """Pending names: names that other nodes wrote and have not persisted yet."""

    async def rows(self, directory_path: bytes) -> Rows:
        """Query the writers. Never fail: for a writer that does not answer, use its last answer or nothing."""
        ...

    def any_gone(self, directory_path: bytes) -> bool:
        """Return whether a writer of this directory left the cluster, perhaps before it published its last names."""
        ...


class Listings:
    """Lists directories. `on_changed` is called with the names whose meaning changed. `shared` queries the nodes that
    own a directory. `others` queries the nodes that wrote in it. With `for_peer`, a peer asks this node as the owner,
    so this node asks no other peer."""

    def __init__(
        self,
        tree: NameTree,
        pending: PendingRows,
        changes: NameChanges,
        on_changed: NamesChanged,
        *,
        freshness: Freshness,
        timeout_s: float,
        shared: OwnerListingClient | None = None,
        others: OthersNames | None = None,
    ) -> None:
        self._tree = tree
        self._index = tree.index
        self._pending = pending
        self._changes = changes
        self._on_changed = on_changed
        self._freshness = freshness
        self._timeout_s = timeout_s
        self._shared = shared
        self._others = others
        self._writer_queries = asyncio.Semaphore(WRITER_QUERIES_MAX)
        self._unavailable: set[str] = set()
        self._in_progress: SingleFlight[tuple[FileId, bool], None] = SingleFlight()

    async def list(self, directory: FileId, *, for_peer: bool = False) -> None:
        """Make sure that the index has a whole and fresh listing of the directory."""
        if not self._tree.is_fresh(directory):
            try:
                await self.relist(directory, for_peer=for_peer)
            except (OriginUnavailableError, DeadlineExceededError) as error:
                if not self._tree.is_listed(directory):
                    raise
                self._log_unavailable(directory, error)
                self._index.names.set_fresh_until(directory, _in_s(STALE_EXTENSION_S))
            else:
                if self._unavailable:
                    self._log_available(directory)

    def _log_unavailable(self, directory: FileId, error: HeadraceError) -> None:
        """Warn once of an origin, until it lists a directory again: readers may use thousands."""
        url = self._url_of(directory)
        level = logging.DEBUG if url in self._unavailable else logging.WARNING
        self._unavailable.add(url)
        log.log(level, "the origin is unavailable, old listings stay in use url=%s error=%s", url, error)

    def _log_available(self, directory: FileId) -> None:
        url = self._url_of(directory)
        if url in self._unavailable:
            self._unavailable.discard(url)
            log.info("the origin lists directories again url=%s", url)

    def _url_of(self, directory: FileId) -> str:
        """Return the URL of the origin below which a directory lies; empty if there is none by now."""
        path = self._index.path_of(directory)
        mount_and_key = None if path is None else self._tree.mounts.find(path)
        return "" if mount_and_key is None else mount_and_key[0].url

    def is_known(self, directory: FileId) -> bool:
        """Return whether the index has a listing of the directory, or will have one that began already."""
        return self._tree.is_listed(directory) or any(
            self._in_progress.is_running((directory, direct)) for direct in (False, True)
        )

    async def relist(self, directory: FileId, *, for_peer: bool = False) -> None:
        """List the directory again, or wait for the listing in progress. A failure leaves the old listing in
        place."""
        direct = for_peer or self._is_own(directory)
        await self._in_progress.run(
            (directory, direct), lambda: self._list_now(directory, direct=direct, anew=False)
        )

    async def refresh(self, directory: FileId, *, for_peer: bool = False) -> None:
        """List the directory again, however fresh the index is, with a listing that begins now: one in progress may
        have read past the change. A failure leaves the old listing in place."""
        await self._run_anew(directory, direct=for_peer or self._is_own(directory), anew=True)

    async def _run_anew(self, directory: FileId, *, direct: bool, anew: bool) -> None:
        """List the directory with a listing that begins now. anew: so does the listing of its owner."""
        await self._in_progress.run_anew(
            (directory, direct), lambda: self._list_now(directory, direct=direct, anew=anew)
        )

    async def relist_below(self, path: bytes, *, below: bool = True) -> None:
        """Repeat earlier listings of a path and, with `below`, of directories below it, with listings that begin now:
        one in progress may have its pages from a node that was to be notified. A listing that fails is repeated at the
        next access."""
        top = self._tree.directory_at(path)
        waiting = [] if top is None else [top]
        while waiting:
            directory = waiting.pop()
            if not self._tree.is_listed(directory):
                continue
            try:
                await self._run_anew(directory, direct=self._is_own(directory), anew=False)
            except HeadraceError as error:
                log.info("listing failed directory=%x error=%s", directory, error)
            if not below:
                return
            waiting.extend(e.id for e in self._index.children(directory) if e.kind is Kind.DIRECTORY)

    async def refresh_listed(self, path: bytes) -> None:
        """Refresh a directory by path. Do nothing if it was never listed or is no longer a directory."""
        entry = self._tree.entry_at(path)
        if entry is not None and self._tree.is_listed(entry.id):
            await self.refresh_for_names(path)

    async def refresh_after_removal(self, path: bytes) -> None:
        """Refresh a directory from which this node removed names at the origin. Do nothing if its first listing begins
        after this call, at the origin. The owner of the directory may have a listing from before."""
        directory = self._tree.directory_at(path)
        if directory is not None and (self.is_known(directory) or not self._is_own(directory)):
            await self.refresh_for_names(path)

    async def refresh_for_names(self, path: bytes) -> None:
        """Make the index show the names of a directory as the other nodes and the origin have them now. Do nothing
        for a directory that neither has."""
        tried: FileId | None = None
        while (directory := self._tree.directory_at(path)) is not None:
            try:
                await self.refresh(directory)
            except StaleIdError:  # a listing of its parent removed or replaced it meanwhile
                if directory == tried:
                    raise
                tried = directory
            else:
                return

    async def refresh_pending(self, directory_path: bytes) -> None:
        """Make the index show the pending names of a directory, because another node changed some."""
        directory = self._tree.directory_at(directory_path)
        if directory is None:
            return
        if not self._tree.is_listed(directory) and not self._pending.knows(directory_path):
            return
        await self._fetch_pending(directory, directory_path)
        if self._others is not None and self._others.any_gone(directory_path):
            await self.refresh(directory)
        elif self._pending.is_leaving(directory_path):
            await self.relist(directory)
        if self._pending.is_leaving(directory_path):  # that listing had begun before the change
            await self.refresh(directory)

    def patience_s(self, directory: FileId) -> float:
        """Return the seconds to wait for an unavailable origin: shorter if an old listing can serve."""
        return min(self._timeout_s, PATIENCE_S) if self._tree.is_listed(directory) else self._timeout_s

    # ------------------------------------------------------------ one listing

    def _is_own(self, directory: FileId) -> bool:
        """Return whether this node lists the directory at the origin itself."""
        path = self._index.path_of(directory)
        return self._shared is None or path is None or self._shared.owns(path)

    async def _list_now(self, directory: FileId, *, direct: bool, anew: bool) -> None:
        """List the directory at its origin (`direct`) or at its owner. The two kinds of listing never wait for each
        other: two nodes that take each other for the owner would wait forever."""
        path, mount, key = self._tree.origin_of(directory)
        if mount is not None:
            await self._fetch_pending(directory, path)
        if mount is not None and self._shared is not None and not direct:
            pages = self._shared.listing(path, anew=anew)
            if pages is not None and await self._list_from_owner(directory, path, pages):
                return
        await self._list_from_origin(directory, path, mount, key)

    async def _fetch_pending(self, directory: FileId, directory_path: bytes) -> None:
        if self._others is not None:
            async with self._writer_queries:
                rows = await self._others.rows(directory_path)
            if changed := self._pending.replace_rows(directory_path, directory, rows):
                self._on_changed(changed)

    async def _list_from_owner(self, directory: FileId, path: bytes, pages: AsyncIterator[Names]) -> bool:
        """Take the listing from the owner. Return False if the owner fails; then the caller asks the origin."""
        try:
            with self._begin(directory, path) as (writer, listing):
                good_for_s = 0.0
                async for page in pages:
                    _add_rows(writer, listing.rest(page.rows))
                    good_for_s = page.good_for_s
                await self._finish(directory, writer, listing, _in_s(good_for_s))
        except HeadraceError as error:
            log.info(
                "listing at the owner of the directory failed path=%s error=%s", os.fsdecode(path), error
            )
            return False
        return True

    async def _list_from_origin(self, directory: FileId, path: bytes, mount: Mount | None, key: str) -> None:
        with self._begin(directory, path) as (writer, listing):
            if mount is not None:
                # a listing of millions takes many requests, and each has the origin's own limit
                deadline = Deadline.after(self._timeout_s * 10, patience_s=self.patience_s(directory))
                is_empty = True
                async for origin_page in mount.origin.list_directory(key, deadline=deadline):
                    is_empty = is_empty and not (origin_page.objects or origin_page.directories)
                    page = self._changes.without_own(directory, path, origin_page)
                    if listing.is_bare:
                        writer.add(_files_of(page), map(os.fsencode, page.directories))
                    else:
                        _add_rows(writer, listing.rest(_rows_of(page)))
                if is_empty:
                    await self._confirm_empty(directory, path, mount, key, deadline)
            fresh_until_ns = FOREVER_NS if mount is None else _in_s(self._freshness.age_s(path, mount))
            await self._finish(directory, writer, listing, fresh_until_ns)

    async def _confirm_empty(
        self, directory: FileId, path: bytes, mount: Mount, key: str, deadline: Deadline
    ) -> None:
        """Look up one of the names that a directory had, because its listing has none. A proxy before a store may
        answer with a page of its own, and a client of the store finds no names in it. Raise OriginUnavailableError if
        the origin still has that file."""
        some = islice(self._index.children(directory), CONFIRMED_AMONG)
        known = [entry for entry in some if self._pending.row(path, entry.name) is None]
        if not known:
            return
        entry = min(known, key=lambda entry: entry.kind)  # a file, if there is one
        name = os.fsdecode(entry.name)
        try:
            info = await mount.origin.head(f"{key}/{name}" if key else name, deadline=deadline)
        except HeadraceError as error:
            if error.retryable:
                raise
            return
        if entry.kind is Kind.FILE and info.version == entry.version:
            raise OriginUnavailableError(
                f"{mount.url}/{key}", why="its listing of a directory lacks a file that it has"
            )

    @contextmanager
    def _begin(self, directory: FileId, path: bytes) -> Iterator[tuple[ListingWriter, OriginListing]]:
        """Begin a listing. At its end, complete or not, report the names that changed and were not reported yet."""
        writer, listing = ListingWriter(self._index.names, directory), self._pending.listing(path)
        try:
            for name in self._tree.mounts.below(path):
                writer.keep_directory(name)
            yield writer, listing
        finally:
            if changed := writer.close():
                self._on_changed(changed)

    async def _finish(
        self, directory: FileId, writer: ListingWriter, listing: OriginListing, fresh_until_ns: int
    ) -> None:
        """Complete the listing in the index: keep the pending names of other nodes, remove names that no node and no
        origin has. Let other tasks run in between: there may be millions."""
        for _ in writer.look_for_missing():
            await asyncio.sleep(0)
        for name in self._tree.mounts.below(listing.directory_path):  # some may be new
            writer.keep_directory(name)
        changed = self._pending.apply_over(listing, directory)
        changed += writer.finish(fresh_until_ns)
        listing.end()
        if changed:
            self._on_changed(changed)


def _files_of(page: ListPage) -> list[tuple[bytes, Version]]:
    directories = set(page.directories)
    files = []
    for info in page.objects:
        name = info.key.rsplit("/", 1)[-1]
        if name not in directories:  # a key that is both a file and a directory shows as the directory
            files.append((os.fsencode(name), info.version))
    return files


def _rows_of(page: ListPage) -> list[NameRow]:
    directories = [NameRow(os.fsencode(name), int(Kind.DIRECTORY), 0, 0, "") for name in page.directories]
    files = [
        NameRow(name, int(Kind.FILE), version.size_bytes, version.mtime_ns, version.token)
        for name, version in _files_of(page)
    ]
    return directories + files


def _add_rows(writer: ListingWriter, rows: list[NameRow]) -> None:
    files = [(row.name, version_of(row)) for row in rows if row.kind == Kind.FILE]
    writer.add(files, [row.name for row in rows if row.kind == Kind.DIRECTORY])


def _in_s(seconds: float) -> int:
    return min(FOREVER_NS, boot_clock.now_ns() + int(min(seconds, 1e9) * 1e9))
