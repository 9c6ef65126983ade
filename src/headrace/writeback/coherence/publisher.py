"""Publish this node's dirty names, so that other nodes can show files that the origin does not have yet.

One record of this node names the directories with dirty names (`writeback/coherence/dirty_scope.py`). The node writes
it before it acknowledges the first write in a directory (`enter`). It leaves the record as it is until every name in
the directory has been clean for a while.

Other nodes query the names of a directory (`answer`), and later only the changes. The node also notifies them of each
change (`DirtyNamesChanged`), at most once in PUBLISH_INTERVAL_S. All calls run on the node's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, HeadraceError, PeerError
from headrace.base.namespace_path import join, split
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import Records
from headrace.overlay.pending_version import PendingEntry
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import DirtyNamesChanged, ListPending, PendingNamesPage
from headrace.writeback.coherence.dirty_scope import PREFIX, DirtyScope, with_ancestors
from headrace.writeback.planner import in_turns

log = logging.getLogger(__name__)

PUBLISH_INTERVAL_S = 0.1
"""Least time between two notices, in seconds. Changes in between share one notice."""
NOTIFY_LIMIT_S = 5.0
"""Time limit of one notice to one node, in seconds."""
RETRY_S = 0.5
"""Pause before failed notices are sent again, in seconds."""
NOTICE_DIRECTORIES_MAX = 64
"""Most directories of one notice. A notice of more names their common parent, with everything below it."""
CLEAN_LINGER_S = 5.0
"""Seconds after its last change for which a directory stays in the record although all its names may be clean."""
CHECK_INTERVAL_S = 1.0
"""Pause between two checks for clean names, in seconds."""
NAMES_PER_CHECK_MAX = 2000
"""Most names that one check compares with the origin's state, as each costs a lookup on the node's loop."""
NAMES_PER_PAGE_MAX = 1000
"""Most names of one message. Each name costs the loop 100 to 300 µs. A longer answer has several pages, and the loop
does other work in between."""


@dataclass(slots=True)
class DirtyDirectory:
    """Hold the dirty names of a directory.

    names: the serial number of each name's last change, oldest first. floor: a node whose last known serial is lower
    receives all names. changed_s: time of the last change, on the monotonic clock. unmarked: the published flag is
    cleared, so sessions call the node before they write there. The node learns of earlier writes within
    CHECK_INTERVAL_S.
    """

    names: dict[bytes, int] = field(default_factory=dict)
    floor: int = 0
    changed_s: float = 0.0
    unmarked: bool = False


class DirtyNamesPublisher:
    """Publish dirty names to other nodes.

    instance: the id of this run of the node. entry_of: returns the entry of a path in this node's layer; None if it
    can't be read now. is_clean: returns whether the origin has everything at a path. unmark: clears a directory's
    published flag, so that sessions call the node before they write there.
    """

    def __init__(
        self,
        me: str,
        instance: str,
        records: Records,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        entry_of: Callable[[bytes], PendingEntry | None],
        is_clean: Callable[[bytes], bool],
        unmark: Callable[[bytes], None],
    ) -> None:
        self._me = me
        self._instance = instance
        self._records = records
        self._peers = peers
        self._view = view
        self._entry_of = entry_of
        self._is_clean = is_clean
        self._unmark = unmark
        self._serial = 0
        self._directories: dict[bytes, DirtyDirectory] = {}
        self._below: set[bytes] = set()
        self._unread: set[bytes] = set()
        """Paths that an answer lacks because they could not be read."""
        self._recorded: DirtyScope | None = None
        """The scope in the cluster's record; None if it is unknown."""
        self._writing: asyncio.Task[None] | None = None
        self._removals = 0
        self._failing = False
        self._unsent: dict[str, set[bytes]] = {}
        self._sending: set[str] = set()
        """Nodes for each of which a task sends the queued notices."""
        self._present: set[str] = set()
        self._tasks = OwnedTasks()
        self._started = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Start the tasks, after the first `note`. The first write replaces the record of an earlier run."""
        self._started = True
        self._send_notices()
        self._tasks.start(self._maintain_record())
        self._write()

    async def stop(self) -> None:
        """Stop the tasks. The record stays, because this node's files are still dirty."""
        self._started = False
        await self._tasks.close()

    def status(self) -> dict[str, object]:
        scope = self._recorded or DirtyScope()
        count = len(scope.folders) + len(scope.below)
        return {"directories_announced": count, "is_announced": self._recorded is not None}

    # ------------------------------------------------------------ what changed

    def note(self, paths: Iterable[bytes], directories: Iterable[bytes] = ()) -> None:
        """Note paths that were written or persisted, so that other nodes learn their present state. directories: those
        of the paths in which sessions may create names; the record then covers everything below them."""
        now_s = monotonic_s()
        folders: set[bytes] = set()
        for path in paths:
            directory, name = split(path)
            if not name:
                continue
            folder = self._directories.get(directory)
            if folder is None:  # a node may have an answer from before this directory was forgotten
                folder = self._directories[directory] = DirtyDirectory(floor=self._serial)
            self._serial += 1
            folder.names.pop(name, None)
            folder.names[name] = self._serial
            folder.changed_s, folder.unmarked = now_s, False
            folders.add(directory)
        self._queue_notices(folders)
        new = {path for path in directories if path not in self._below and not self.is_recorded_below(path)}
        self._below |= new
        if self._started and (new or not all(map(self.is_recorded, folders))):
            self._write()

    def on_view(self) -> None:
        """Queue a notice of all directories for each node that joined. One that was cut off from the cluster's records
        alone kept its own view, and received no notice meanwhile."""
        present = {node.id for node in self._others()}
        joined, self._present = present - self._present, present
        if self._directories and joined:
            for id in joined:
                self._unsent.setdefault(id, set()).update(self._directories)
            self._send_notices()

    def has_noted(self, path: bytes) -> bool:
        """Return whether a path was noted, and not found to be clean since."""
        directory, name = split(path)
        folder = self._directories.get(directory)
        return folder is not None and name in folder.names

    async def enter(self, paths: Iterable[bytes]) -> None:
        """Wait until the record covers the directories of these noted paths. If the records are unavailable, log it and
        return at once; the record is written as soon as they are available again."""
        directories = {split(path)[0] for path in paths}
        while not all(map(self.is_recorded, directories)) and not self._failing:
            self._write()
            if self._writing is None:
                return
            await asyncio.wait([self._writing])

    async def ensure_recorded(self, paths: Iterable[bytes]) -> None:
        """Wait until the record covers the directories of these noted paths. Raises ClusterUnavailableError if it can't
        be written now."""
        directories = {split(path)[0] for path in paths}
        while not all(map(self.is_recorded, directories)):
            self._write()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._failing:
                raise ClusterUnavailableError(f"record {PREFIX}", why="it can't be written now")

    def record_again(self) -> None:
        """Write the record again, after another node deleted it because this one seemed to have left, or this node
        did."""
        self._recorded, self._removals = None, self._removals + 1
        if self._started:
            self._write()

    def is_recorded(self, directory: bytes) -> bool:
        return self._recorded is not None and self._recorded.covers(directory)

    def is_recorded_below(self, directory: bytes) -> bool:
        """Return whether the record covers a directory and everything that may be created below it."""
        return self._recorded is not None and self._recorded.covers_below(directory)

    def _scope(self) -> DirtyScope:
        return DirtyScope.of(set(self._directories), self._below)

    # ------------------------------------------------------------ the record

    def _write(self) -> None:
        """Start to write the record unless a write is running. A running write repeats itself until the record is
        current."""
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write_now())

    async def _write_now(self) -> None:
        while self._recorded != (scope := self._scope()):
            key, removals = f"{PREFIX}/{self._me}", self._removals
            try:
                if scope:
                    await self._records.put(key, scope.encode())
                else:
                    await self._records.delete(key)
            except ClusterUnavailableError as error:
                if not self._failing:
                    log.warning("pending names can't be recorded in the cluster, retrying error=%s", error)
                self._failing = True
                return
            if self._failing:
                log.warning("pending names are recorded in the cluster again")
            self._failing = False
            self._recorded = scope if removals == self._removals else None

    async def _maintain_record(self) -> None:
        """Remove directories from the record once all their names are clean, and retry failed writes of the record.
        Names that could not be read count as changed, so that other nodes query them again."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                unread, self._unread = self._unread, set()
                self.note(unread)
                if await self._forget_clean() or self._failing:
                    self._write()
            except Exception:
                log.exception("recorded directories were not checked, retrying")

    async def _forget_clean(self) -> bool:
        """Forget names that are clean. Return whether a directory left the scope. Other tasks run in between, and may
        note names meanwhile."""
        now_s, left, gone = monotonic_s(), NAMES_PER_CHECK_MAX, False
        async for path, directory in in_turns(list(self._directories.items())):
            if now_s - directory.changed_s < CLEAN_LINGER_S:
                continue
            names = list(islice(directory.names.items(), left))
            left -= len(names)
            await self._forget_names(path, directory, names)
            if not directory.names and left > 0:
                if directory.unmarked:
                    del self._directories[path]
                    gone = True
                else:
                    self._unmark(path)
                    directory.unmarked = True
        if gone and self._below:
            self._below &= with_ancestors(self._directories)
        return gone

    async def _forget_names(
        self, path: bytes, directory: DirtyDirectory, names: list[tuple[bytes, int]]
    ) -> None:
        """Forget those names of a directory that are clean, and were not noted again since they had these serials."""
        async for name, serial in in_turns(names):
            if directory.names.get(name) == serial and self._is_clean(join(path, name)):
                directory.floor = max(directory.floor, serial)
                del directory.names[name]

    # ------------------------------------------------------------ queries and notices

    def answer(self, request: ListPending) -> PendingNamesPage:
        """Return a page of the dirty names of a directory: all of them, or those that changed since an earlier answer.

        All pages of an answer end at the serial with which its first page began; the next answer has later changes.
        Raises PeerError while the node starts or stops, because its names are incomplete then.
        """
        if not self._started:
            raise PeerError(f"node {self._me}", why="it starts, or stops")
        directory = self._directories.get(request.path, DirtyDirectory(floor=self._serial))
        since, begun = self._parse(request.since)
        whole = begun is None and since < directory.floor
        begun = self._serial if begun is None else begun
        names = [(name, serial) for name, serial in directory.names.items() if whole or serial > since]
        some = names[:NAMES_PER_PAGE_MAX]
        entries = {path: self._entry_of(path) for path in (join(request.path, name) for name, _ in some)}
        # the requester keeps what it knows of these, until it gets a notice of a change
        self._unread |= {path for path, entry in entries.items() if entry is None}
        rows = [entry for entry in entries.values() if entry is not None]
        if len(some) < len(names):
            return PendingNamesPage(rows, f"{self._instance}:{some[-1][1]}:{begun}", whole, more=True)
        return PendingNamesPage(rows, f"{self._instance}:{begun}", whole)

    def _parse(self, state: str) -> tuple[int, int | None]:
        """Return the last serial that the requester knows and, in the middle of an answer, the serial with which it
        began."""
        instance, _, rest = state.partition(":")
        since, _, begun = rest.partition(":")
        if instance != self._instance:
            return -1, None
        try:
            return int(since), int(begun) if begun else None
        except ValueError:
            return -1, None

    def _queue_notices(self, directories: set[bytes]) -> None:
        """Queue a notice of changed directories for every other node."""
        if not directories:
            return
        for node in self._others():
            self._unsent.setdefault(node.id, set()).update(directories)
        self._send_notices()

    def _others(self) -> list[NodeInfo]:
        nodes = self._view().nodes.values()
        return [node for node in nodes if node.id != self._me]

    def _send_notices(self) -> None:
        """Begin to send queued notices. Each node has a task of its own: one that does not answer delays no other."""
        for id in self._unsent.keys() - self._sending if self._started else ():
            self._sending.add(id)
            self._tasks.start(self._send_to(id))

    async def _send_to(self, id: str) -> None:
        """Send a node its notices until none is left. A notice that failed is sent again as long as the node is in the
        view."""
        try:
            while directories := self._unsent.pop(id, None):
                node = self._view().nodes.get(id)
                if node is None:
                    return
                is_delivered = await self._notify(node, directories)
                if not is_delivered:
                    self._unsent.setdefault(id, set()).update(directories)
                await asyncio.sleep(PUBLISH_INTERVAL_S if is_delivered else RETRY_S)
        finally:
            self._sending.discard(id)

    async def _notify(self, node: NodeInfo, directories: set[bytes]) -> bool:
        """Notify one node of changed directories. Return whether it received the notice."""
        below = len(directories) > NOTICE_DIRECTORIES_MAX
        paths = [os.path.commonpath(directories)] if below else sorted(directories)
        with contextlib.suppress(HeadraceError):
            request = DirtyNamesChanged(self._me, paths, below)
            await self._peers.notify(node, request, Deadline.after(NOTIFY_LIMIT_S))
            return True
        return False
