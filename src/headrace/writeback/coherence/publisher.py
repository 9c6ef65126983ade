"""Publish this node's dirty names: other nodes learn from a record in which directories they are, and query their
names.

One record of this node names the directories (`writeback/coherence/dirty_scope.py`). The node writes it before it
acknowledges the first write in a directory (`enter`). It writes no more until everything in the directory was clean for
a while. Other nodes query the names of a directory (`answer`), and later what changed since. The node notifies them of
changes at once (`DirtyNamesChanged`), a few times a second at most. All on the node's loop.
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
from headrace.writeback.coherence.dirty_scope import PREFIX, DirtyScope

log = logging.getLogger(__name__)

PUBLISH_INTERVAL_S = 0.1
"""Changes are told together, so often."""
NOTIFY_LIMIT_S = 5.0
RETRY_S = 0.5
NOTICE_DIRECTORIES_MAX = 64
"""Folders of one message; beyond that "somewhere below"."""
CLEAN_LINGER_S = 5.0
"""How long a folder stays in the record after the last change in it, when all is clean."""
CHECK_INTERVAL_S = 1.0
NAMES_PER_CHECK_MAX = 2000
"""Names that are looked at, each second, whether they are clean."""
NAMES_PER_PAGE_MAX = 20_000


@dataclass(slots=True)
class DirtyDirectory:
    """Dirty names of a directory. names: each with the number of its last change, oldest first. floor: a node that
    knows nothing later than this receives all names. changed_s: monotonic. unmarked: sessions ask again before they
    write there; the node learns of their earlier writes within CHECK_INTERVAL_S."""

    names: dict[bytes, int] = field(default_factory=dict)
    floor: int = 0
    changed_s: float = 0.0
    unmarked: bool = False


class DirtyNamesPublisher:
    """Publish dirty names to other nodes. instance: of this run of the node. look: returns what a path means in its
    layer. is_clean: returns whether it means only what the origin has. unmark: makes sessions ask again before they
    write in a directory."""

    def __init__(
        self,
        me: str,
        instance: str,
        records: Records,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        entry_of: Callable[[bytes], PendingEntry],
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
        self._recorded: DirtyScope | None = None
        """What the record says; None: not known."""
        self._writing: asyncio.Task[None] | None = None
        self._removals = 0
        self._failing = False
        self._unsent: dict[str, set[bytes]] = {}
        self._wake = asyncio.Event()
        self._tasks = OwnedTasks()
        self._started = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to publish, after the first notes. This overwrites the record of an earlier run."""
        self._started = True
        self._tasks.start(self._send_notices())
        self._tasks.start(self._maintain_record())
        self._write()

    async def stop(self) -> None:
        """End the tasks. The record stays, since this node's files are still dirty."""
        self._started = False
        await self._tasks.close()

    def status(self) -> dict[str, object]:
        scope = self._recorded or DirtyScope()
        count = len(scope.folders) + len(scope.below)
        return {"directories_announced": count, "is_announced": self._recorded is not None}

    # ------------------------------------------------------------ what changed

    def note(self, paths: Iterable[bytes], directories: Iterable[bytes] = ()) -> None:
        """Note paths that were written or persisted, so that other nodes learn their present meaning. directories:
        those of them in which more is to be expected."""
        now_s = monotonic_s()
        folders: set[bytes] = set()
        for path in paths:
            directory, name = split(path)
            if not name:
                continue
            self._serial += 1
            folder = self._directories.setdefault(directory, DirtyDirectory())
            folder.names.pop(name, None)
            folder.names[name] = self._serial
            folder.changed_s, folder.unmarked = now_s, False
            folders.add(directory)
        self._queue_notices(folders)
        new = {path for path in directories if path not in self._below and not self.is_recorded_below(path)}
        self._below |= new
        if self._started and (new or not all(map(self.is_recorded, folders))):
            self._write()

    async def enter(self, paths: Iterable[bytes]) -> None:
        """Return when the record names the directories of these noted paths. While the records can't be reached, return
        at once, and log it: the record is written as soon as they are back."""
        folders = {split(path)[0] for path in paths}
        while not all(map(self.is_recorded, folders)) and not self._failing:
            self._write()
            if self._writing is None:
                return
            await asyncio.wait([self._writing])

    def record_again(self) -> None:
        """Write the record again: another node took this one for gone and deleted it, or this node did."""
        self._recorded, self._removals = None, self._removals + 1
        if self._started:
            self._write()

    def is_recorded(self, folder: bytes) -> bool:
        return self._recorded is not None and self._recorded.covers(folder)

    def is_recorded_below(self, folder: bytes) -> bool:
        """Return whether the record covers a directory with all that may come to be in it."""
        return self._recorded is not None and self._recorded.covers_below(folder)

    def _scope(self) -> DirtyScope:
        return DirtyScope.of(set(self._directories), self._below)

    # ------------------------------------------------------------ the record

    def _write(self) -> None:
        """Start one write at a time; the next one has what comes meanwhile."""
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
        """Remove directories from the record a while after everything in them is clean, and retry a write that
        failed."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                if self._forget_clean() or self._failing:
                    self._write()
            except Exception:
                log.exception("recorded directories were not checked, retrying")

    def _forget_clean(self) -> bool:
        """Forget clean names. Return whether a directory was forgotten."""
        now_s, left, gone = monotonic_s(), NAMES_PER_CHECK_MAX, False
        for path, folder in list(self._directories.items()):
            if now_s - folder.changed_s < CLEAN_LINGER_S:
                continue
            for name, serial in list(islice(folder.names.items(), max(0, left))):
                left -= 1
                if self._is_clean(join(path, name)):
                    folder.floor = max(folder.floor, serial)
                    del folder.names[name]
            if not folder.names and left > 0:
                if folder.unmarked:
                    del self._directories[path]
                    gone = True
                else:
                    self._unmark(path)
                    folder.unmarked = True
        if gone:
            self._below = {top for top in self._below if self._is_needed(top)}
        return gone

    def _is_needed(self, top: bytes) -> bool:
        prefix = top + b"/"
        return any(folder == top or folder.startswith(prefix) for folder in self._directories)

    # ------------------------------------------------------------ asking and telling

    def answer(self, request: ListPending) -> PendingNamesPage:
        """Return the names of a directory, all or those since an earlier answer. An answer of several messages ends
        with the state that it began with; later changes are in the next one. PeerError from a node that starts or
        stops, as it does not know all."""
        if not self._started:
            raise PeerError(f"node {self._me}", why="it starts, or stops")
        folder = self._directories.get(request.path, DirtyDirectory(floor=self._serial))
        since, begun = self._parse(request.since)
        whole = begun is None and since < folder.floor
        begun = self._serial if begun is None else begun
        names = [(name, serial) for name, serial in folder.names.items() if whole or serial > since]
        some = names[:NAMES_PER_PAGE_MAX]
        rows = [self._entry_of(join(request.path, name)) for name, _ in some]
        if len(some) < len(names):
            return PendingNamesPage(rows, f"{self._instance}:{some[-1][1]}:{begun}", whole, more=True)
        return PendingNamesPage(rows, f"{self._instance}:{begun}", whole)

    def _parse(self, state: str) -> tuple[int, int | None]:
        """Return up to which change the asker knows all; and, in the middle of an answer, the state that it began
        with."""
        instance, _, rest = state.partition(":")
        since, _, begun = rest.partition(":")
        if instance != self._instance or not since.isdigit():
            return -1, None
        return int(since), int(begun) if begun.isdigit() else None

    def _queue_notices(self, folders: set[bytes]) -> None:
        if not folders:
            return
        for node in self._others():
            self._unsent.setdefault(node.id, set()).update(folders)
        self._wake.set()

    def _others(self) -> list[NodeInfo]:
        nodes = self._view().nodes.values()
        return [node for node in nodes if node.id != self._me]

    async def _send_notices(self) -> None:
        """Notify other nodes. A node that could not be notified is notified again, as long as it is in the view."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent = self._unsent, {}
            notices = [(node, unsent[node.id]) for node in self._others() if node.id in unsent]
            done = await asyncio.gather(*(self._notify(node, folders) for node, folders in notices))
            for (node, folders), is_delivered in zip(notices, done, strict=True):
                if not is_delivered:
                    self._unsent.setdefault(node.id, set()).update(folders)
            await asyncio.sleep(PUBLISH_INTERVAL_S if all(done) else RETRY_S)
            if self._unsent:
                self._wake.set()

    async def _notify(self, node: NodeInfo, folders: set[bytes]) -> bool:
        below = len(folders) > NOTICE_DIRECTORIES_MAX
        paths = [os.path.commonpath(folders)] if below else sorted(folders)
        with contextlib.suppress(HeadraceError):
            request = DirtyNamesChanged(self._me, paths, below)
            await self._peers.notify(node, request, Deadline.after(NOTIFY_LIMIT_S))
            return True
        return False
