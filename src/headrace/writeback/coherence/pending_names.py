"""Describe dirty names to other nodes: names in mode `back` that the origin does not have yet."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterable

from headrace.base.model import Version
from headrace.base.namespace_path import join, split
from headrace.base.os_errors import unread_error
from headrace.base.write_modes import WriteMode
from headrace.namespace.mounts import MountTable
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.mark_names import MARKS
from headrace.overlay.pending_version import EntryState, PendingEntry, PendingVersion
from headrace.overlay.upper import Upper
from headrace.writeback.coherence.publisher import DirtyNamesPublisher
from headrace.writeback.dirty_set import DirtySet
from headrace.writeback.observers import WriteObserver
from headrace.writeback.planner import StepPlanner
from headrace.writeback.replication.dirty_files import own_entry
from headrace.writeback.sync_journal import JournalRecord, SyncJournal
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

RESOLVE_ATTEMPTS_MAX = 2
"""Times that a version is looked up in the journal: before its file is persisted, and after it."""


class PendingNames:
    """Return the state of the layer's names for other nodes."""

    def __init__(self, layer: WritableLayer, planner: StepPlanner, dirty: DirtySet) -> None:
        self._layer = layer
        self._upper = layer.upper
        self._modes = layer.modes
        self._journal = layer.journal
        self._planner = planner
        self._dirty = dirty

    def means(self, path: bytes) -> PendingEntry | None:
        """Return the entry of a path; its state is ORIGIN if the origin has everything. None if the path can't be read
        now: one such name keeps no other from being shown."""
        try:
            return self._means(path)
        except OSError as error:
            log.info("a pending name can't be read path=%s error=%s", os.fsdecode(path), error)
            return None

    def _means(self, path: bytes) -> PendingEntry:
        """Return the same. Raises OSError if the path can't be read now."""
        safe_path, name = self._upper.at(path), split(path)[1]
        entry = own_entry(safe_path, name)
        if entry.means == EntryState.DIRECTORY and path in self._modes.tops():
            # it is created at the origin with the first entry below it
            return entry if self._dirty.below(path) else PendingEntry(name, EntryState.ORIGIN)
        if entry.means != EntryState.ORIGIN and self._modes.of(path) is WriteMode.BACK:
            status = safe_path.seen()
            if status is not None and self._planner.step(path, status) is not None:
                return entry
        return PendingEntry(name, EntryState.HIDDEN if self._is_vanished(path) else EntryState.ORIGIN)

    def _is_vanished(self, path: bytes) -> bool:
        """Return whether programs removed a path from an exclusive directory, where no marker hides it."""
        row = self._journal.get(path) if self._layer.is_exclusive(path) else None
        return row is not None and self._planner.is_vanished(row)

    def is_clean(self, path: bytes) -> bool:
        """Return whether the origin has everything at a path."""
        try:
            return path not in self._dirty and self._means(path).means == EntryState.ORIGIN
        except OSError:
            return False


class PublishedFlags:
    """Flag directories whose names are published. A session writes there without a call to the node."""

    def __init__(self, upper: Upper, flags: DirectoryFlags) -> None:
        self._upper = upper
        self._flags = flags

    def set(self, directories: Iterable[bytes]) -> None:
        with self._upper.lock:
            for directory in directories:
                self._flags.set(self._upper.at(directory), directory, MARKS.published)

    def clear(self, directory: bytes) -> None:
        """Clear the flag of a directory, so that sessions call the node before they write there."""
        with self._upper.lock:
            self._flags.clear(self._upper.at(directory), MARKS.published)


class PendingNamesObserver(WriteObserver):
    """Report changes of dirty names to the publisher. mounts: a directory of one of them is at no origin."""

    def __init__(
        self,
        layer: WritableLayer,
        publisher: DirtyNamesPublisher,
        flags: PublishedFlags,
        *,
        mounts: MountTable,
    ) -> None:
        self._mounts = mounts
        self._upper = layer.upper
        self._modes = layer.modes
        self._publisher = publisher
        self._flags = flags

    def start(self, dirty: Iterable[bytes]) -> None:
        self._note(dirty, below=False)
        self._publisher.start()

    async def stop(self) -> None:
        await self._publisher.stop()

    def on_changed(self, paths: list[bytes], source: int) -> None:
        self._note(paths)

    async def on_persisted(self, paths: list[bytes], directories: set[bytes]) -> None:
        self._note(paths, below=False)

    async def before_acknowledged(self, path: bytes) -> None:
        """Wait until the cluster's records cover the dirty names at and below a path, and flag their directories as
        published."""
        published = self._note([path])
        await self._publisher.enter(published)
        directories = {split(path)[0] for path in published}
        self._flags.set(directory for directory in directories if self._publisher.is_recorded(directory))

    async def publish_all_of(self, directory: bytes) -> None:
        """Publish all names of a directory, with those that no session has reported yet. Queries after this call see
        them. Raises ClusterUnavailableError if the cluster's records can't tell other nodes to query them."""
        names = [join(directory, name) for name in self._upper.names(directory)]
        await self._publisher.ensure_recorded(self._note(names, below=False))

    def status(self) -> dict[str, object]:
        return self._publisher.status()

    def _note(self, paths: Iterable[bytes], *, below: bool = True) -> list[bytes]:
        """Note in the publisher that paths changed here, or were persisted. below: include everything below them.
        Return all paths that were noted."""
        noted = {path: False for path in paths if self._modes.of(path) is WriteMode.BACK}
        if below:
            unread: dict[bytes, OSError] = {}  # these are published when their sessions report them
            walked = (pair for path in list(noted) for pair in self._upper.walk(path, unread))
            noted |= {path: stat.S_ISDIR(status.st_mode) for path, status in walked}
        noted |= dict.fromkeys(self._new_tops(noted), False)
        self._publisher.note(noted, [path for path, is_directory in noted.items() if is_directory])
        return list(noted)

    def _new_tops(self, noted: Iterable[bytes]) -> list[bytes]:
        """Return the directories of the write modes that noted paths lie in. No session creates them, and the origin
        may have none of them yet."""
        tops = [top for top in self._modes.tops() if top != b"/" and not self._publisher.has_noted(top)]
        paths = list(noted) if tops else []
        return [
            top
            for top in tops
            if any(path.startswith(top + b"/") for path in paths) and not self._is_mount(top)
        ]

    def _is_mount(self, top: bytes) -> bool:
        place = self._mounts.find(top)
        return place is None or not place[1]


class SingleNodeFlags(WriteObserver):
    """Clear the flags that remain from a time with other nodes: in a single node, sessions need no leases."""

    def __init__(self, upper: Upper) -> None:
        self._path = upper.marks_path

    def start(self, dirty: Iterable[bytes]) -> None:
        if os.path.exists(self._path):
            with contextlib.closing(DirectoryFlags(self._path)) as flags:
                flags.begin(0)


class OwnVersions:
    """Resolve pending versions of this node's files. persist: returns when the origin has a path."""

    def __init__(
        self, upper: Upper, journal: SyncJournal, persist: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._upper = upper
        self._journal = journal
        self._persist = persist

    async def resolve_version(self, path: bytes, pending: PendingVersion) -> Version | None:
        """Persist the file if its pending version is still there, and return the origin's version, also if the file was
        demoted since. Return None if that version was replaced before it was persisted. Raises StoreError if the file
        can't be read now."""
        for _ in range(RESOLVE_ATTEMPTS_MAX):
            row = self._journal.get(path)
            if row is not None and _has_persisted(row, pending):
                return row.version
            demoted = self._journal.demoted(path, pending.inode, pending.ctime_ns)
            if demoted is not None:
                return demoted
            try:
                entry = own_entry(self._upper.at(path), split(path)[1])
            except OSError as error:
                raise unread_error(path, error) from error
            if (entry.inode, entry.ctime_ns) != (pending.inode, pending.ctime_ns):
                return None
            await self._persist(path)
        return None


def _has_persisted(row: JournalRecord, pending: PendingVersion) -> bool:
    """Return whether a row says what the origin has of a pending version."""
    is_same = (row.inode, row.ctime_ns) == (pending.inode, pending.ctime_ns)
    return is_same and not row.begun and row.is_there
