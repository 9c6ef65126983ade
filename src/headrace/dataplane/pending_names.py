"""What of the upper layer is told to other nodes: names in mode `back` that the origin has not got yet.

The registry says where they are, and to whom; here is said what they are.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable

from headrace.base.model import Version
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.dataplane.directory_lease import DirectoryLeases
from headrace.dataplane.dirty_files import own_name
from headrace.dataplane.publisher import DirtyNamesPublisher
from headrace.overlay.lease_marks import PUBLISHED, DirectoryFlags
from headrace.overlay.pending_version import EntryState, PendingEntry, PendingVersion
from headrace.overlay.sync_journal import SyncJournal
from headrace.overlay.upper import Upper, join, split

SETTLE_LOOKS = 2


class PendingNames:
    """needs: whether the origin lacks something of a path. registry: set where there are other nodes; before that,
    and without, nobody is told anything. rights: likewise."""

    def __init__(
        self,
        upper: Upper,
        known: SyncJournal,
        modes: WriteModes,
        *,
        needs: Callable[[bytes, os.stat_result], object],
        is_dirty: Callable[[bytes], bool],
        persist: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._upper = upper
        self._known = known
        self._modes = modes
        self._needs = needs
        self._is_dirty = is_dirty
        self._persist = persist
        self.registry: DirtyNamesPublisher | None = None
        self.rights: DirectoryLeases | None = None

    def start(self, dirty: Iterable[bytes]) -> None:
        self.tell(dirty, below=False)
        if self.registry is not None and self.rights is not None:
            self.registry.start()
            self.rights.start()
        elif os.path.exists(self._upper.marks_path):  # of a time when there were other nodes
            with contextlib.closing(DirectoryFlags(self._upper.marks_path)) as marks:
                marks.begin(0)

    async def stop(self) -> None:
        if self.registry is not None:
            await self.registry.stop()
        if self.rights is not None:
            await self.rights.stop()

    def means(self, path: bytes) -> PendingEntry:
        """What a path means for other nodes."""
        at, name = self._upper.at(path), split(path)[1]
        one = own_name(at, name)
        if one.means != EntryState.ORIGIN and self._modes.of(path) is WriteMode.BACK:
            with contextlib.suppress(OSError):
                if self._needs(path, at.lstat()) is not None:
                    return one
        return PendingEntry(name, EntryState.ORIGIN)

    def is_clean(self, path: bytes) -> bool:
        return not self._is_dirty(path) and self.means(path).means == EntryState.ORIGIN

    def tell(self, paths: Iterable[bytes], *, below: bool = True) -> list[bytes]:
        """These changed here, or were persisted; below: and all that is below them. All that was told."""
        if self.registry is None:
            return []
        told = {path: False for path in paths if self._modes.of(path) is WriteMode.BACK}
        if below:
            found = (one for path in list(told) for one in self._upper.walk(path))
            told |= {path: stat.S_ISDIR(seen.st_mode) for path, seen in found}
        self.registry.note(told, [path for path, is_directory in told.items() if is_directory])
        return list(told)

    async def enter(self, path: bytes) -> None:
        """The cluster's records say that something was written there, on return."""
        told = self.tell([path])
        if self.registry is not None:
            await self.registry.enter(told)
            self._mark({split(one)[0] for one in told})

    def _mark(self, folders: Iterable[bytes]) -> None:
        """A session need not ask for these."""
        if self.rights is None:
            return
        with self._upper.lock:
            for folder in folders:
                if self.registry is not None and self.registry.is_recorded(folder):
                    self.rights.marks.set(self._upper.at(folder), folder, PUBLISHED)

    def unmark(self, folder: bytes) -> None:
        if self.rights is not None:
            with self._upper.lock:
                self.rights.marks.clear(self._upper.at(folder), PUBLISHED)

    async def tell_all_of(self, folder: bytes) -> None:
        """Also what no session has told of yet: whoever asks after this is told of it."""
        told = self.tell([join(folder, name) for name in self._upper.names(folder)], below=False)
        if self.registry is not None:
            await self.registry.enter(told)

    async def settle(self, path: bytes, written: PendingVersion) -> Version | None:
        """What the origin has of a state of a file here, which is persisted first; None: that state is gone."""
        for _ in range(SETTLE_LOOKS):
            row = self._known.get(path)
            same = row is not None and (row.inode, row.ctime_ns) == (written.inode, written.ctime_ns)
            if row is not None and same and not row.begun and row.version.size_bytes >= 0:
                return row.version
            one = own_name(self._upper.at(path), split(path)[1])
            if (one.inode, one.ctime_ns) != (written.inode, written.ctime_ns):
                return None
            await self._persist(path)
        return None

    def status(self) -> dict[str, object]:
        return {} if self.registry is None else self.registry.status()
