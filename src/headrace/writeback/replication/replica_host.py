"""Keep replicas of other nodes' changes until those nodes have persisted them: the replica's side of replicator.py.

Each writer has a replica layer (replica_layer.py) on the first volume, in a directory named by the writer's id.
failover.py persists it if the writer leaves the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from functools import partial
from weakref import WeakValueDictionary

from headrace.base import failpoint
from headrace.base.beneath import Root
from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, PeerError, StoreError, UsageError
from headrace.base.model import Version
from headrace.base.os_errors import unread_error
from headrace.base.sizes import disk_bytes
from headrace.base.tasks import all_of, ended
from headrace.overlay.durable_writes import flush_folder
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.snapshot import Snapshot
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import FileRange, Replicate, ReplicateAhead
from headrace.writeback.replication.replica_layer import Range, ReplicaLayer, copy_of
from headrace.writeback.replication.replicator import OFFER_TOKEN_PREFIX
from headrace.writeback.sync_journal import JOURNAL_FILE, SyncJournal
from headrace.writeback.write_ahead import WriteAhead

log = logging.getLogger(__name__)

PERSISTED_FILE = "taken.db"
"""Name of the journal of files that were persisted for a writer, which it has not acknowledged yet."""
RANGES_IN_FLIGHT_MAX = 4
"""Most ranges of one file that are fetched, or written ahead, at the same time."""
FETCH_LIMIT_S = 60.0
"""Time limit of fetching one range, in seconds."""
STAGING_IDLE_S = 600.0
"""Seconds without a write after which an incomplete file that was sent ahead is deleted."""


class ReplicaHost:
    """Hold replicas for other nodes.

    me: the id of this node. folder: the directory of all replicas. is_durable: replicas are on the disk before their
    writer is answered. Calls are on the node's loop; work that touches the disk runs in `threads`.
    """

    def __init__(
        self,
        me: str,
        directory: str,
        peers: PeerClient,
        threads: Executor,
        *,
        view: Callable[[], ClusterView],
        is_durable: bool = True,
    ) -> None:
        self._is_durable = is_durable
        self._disk = WriteAhead(partial(flush_folder, directory), threads)
        self._me = me
        self._folder = directory
        self._peers = peers
        self._threads = threads
        self._view = view
        self._layers: dict[str, ReplicaLayer] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._gates: WeakValueDictionary[tuple[str, int], asyncio.Semaphore] = WeakValueDictionary()
        self.bytes_kept = 0
        """Bytes of all replicas on the disk, at the last `measure`."""

    async def measure(self) -> None:
        """Count the bytes of all replicas. Reads all names, in a thread."""
        self.bytes_kept = await self._in_thread(_bytes_below, self._folder)

    async def drop_idle(self) -> None:
        """Delete files that were sent ahead and never completed. A writer whose lock is held has its turn at the next
        call: a file that is being fetched, or a failover, may take long."""
        for writer in list(self._layers):
            if self.lock_of(writer).locked():
                continue
            async with self.lock_of(writer):
                layer = self._layers.get(writer)
                if layer is None:
                    continue  # a failover began meanwhile
                count = await self._in_thread(layer.drop_idle, STAGING_IDLE_S)
                if count:
                    log.info("incomplete replicas were dropped writer=%s files=%d", writer, count)

    def writers(self) -> list[str]:
        """Return the ids of the nodes whose replicas are kept here."""
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []

    def folder_of(self, writer: str) -> str:
        """Return the directory of a writer's replicas. Raises UsageError if the id cannot be a directory name."""
        if not writer or "/" in writer or writer.startswith("."):
            raise UsageError(f"node {writer!r}", why="it can't be used as a directory name")
        return os.path.join(self._folder, writer)

    def persisted_version(self, path: bytes, pending: PendingVersion) -> Version | None:
        """Return the origin's version of a writer's file that this node persisted in a failover; None if it persisted
        none."""
        journal_path = os.path.join(self.folder_of(pending.writer), PERSISTED_FILE)
        if not os.path.exists(journal_path):
            return None
        with contextlib.closing(SyncJournal(journal_path)) as journal:
            row = journal.get(path)
        same = row is not None and (row.inode, row.ctime_ns) == (pending.inode, pending.ctime_ns)
        return row.version if row is not None and same else None

    def holds(self, path: bytes, pending: PendingVersion) -> bool:
        """Return whether this node has a replica of a pending version. Raises StoreError if the disk fails."""
        tree = Root(os.fsencode(self.folder_of(pending.writer)) + b"/tree")
        try:
            return copy_of(tree.at(path))[:2] == (pending.inode, pending.ctime_ns)
        except OSError as error:
            raise unread_error(path, error) from error

    def resolve_version(self, path: bytes, pending: PendingVersion) -> Version | None:
        """Return `persisted_version`. Raises ClusterUnavailableError if this node has a replica of that version that is
        not persisted: after the writer left, its failover will do so."""
        version = self.persisted_version(path, pending)
        if version is None and self.holds(path, pending):
            why = f"node {pending.writer} left, and its replica is not persisted yet"
            raise ClusterUnavailableError(os.fsdecode(path), why=why)
        return version

    def lock_of(self, writer: str) -> asyncio.Lock:
        """Return the lock that protects a writer's replicas."""
        return self._locks.setdefault(writer, asyncio.Lock())

    async def forget(self, writer: str) -> None:
        """Forget the state of a writer's replicas, because other code changes their directory. On return no range that
        was sent ahead is written there any more. The caller holds the writer's lock."""
        layer = self._layers.pop(writer, None)
        if layer is not None:
            await self._in_thread(layer.close)

    async def replicate(self, request: Replicate) -> None:
        """Apply snapshots of a writer. On return the replicas match them, on the disk if `is_durable`. Raises
        HeadraceError if the writer can't be reached."""
        node = self._node(request.writer)
        async with self.lock_of(request.writer):
            layer = await self._layer_of(request.writer)
            if request.begin:
                await self._in_thread(forget_persisted, self.folder_of(request.writer))
                layer.begin()
            small: list[Snapshot] = []
            for snapshot in request.snapshots:
                if snapshot.is_large:
                    async with self._without_ranges_ahead(request.writer, snapshot.inode):
                        await self._fetch(node, layer, snapshot)
                        await self._in_thread(_install, layer, [snapshot])
                else:
                    small.append(snapshot)
            failpoint.hit("keep.fetched")
            await self._in_thread(_install, layer, small)
            if request.end:
                await self._in_thread(layer.end)
        if self._is_durable:
            await self._disk.flush()

    async def replicate_ahead(self, request: ReplicateAhead) -> None:
        """Fetch a range of a large file before the snapshot of it arrives."""
        node = self._node(request.writer)
        async with self.lock_of(request.writer):
            layer = await self._layer_of(request.writer)
        body = await self._range(node, request.inode, (request.start, request.end))
        async with self._gate_of(request.writer, request.inode):
            if self._layers.get(request.writer) is not layer:
                return  # a failover began meanwhile; the snapshot fetches what is missing
            await self._in_thread(layer.write, request.inode, request.start, body)

    async def _fetch(self, node: NodeInfo, layer: ReplicaLayer, snapshot: Snapshot) -> None:
        """Fetch the blocks of a large file that are not here yet."""
        gate = asyncio.Semaphore(RANGES_IN_FLIGHT_MAX)

        async def fetch_range(range_: Range) -> None:
            async with gate:
                body = await self._range(node, snapshot.inode, range_)
                await self._in_thread(layer.write, snapshot.inode, range_[0], body)

        await all_of(fetch_range(range_) for range_ in await self._in_thread(layer.missing, snapshot))

    async def _range(self, node: NodeInfo, inode: int, range_: Range) -> bytes | bytearray | memoryview:
        """Return a range of a writer's file, as the file was at some moment of this call."""
        start, end = range_
        wanted = FileRange(b"/", end, 0, f"{OFFER_TOKEN_PREFIX}{inode:x}", start, end)
        arrived = await self._peers.fetch(
            node, wanted, cached_only=True, epoch=self._view().epoch, deadline=Deadline.after(FETCH_LIMIT_S)
        )
        return arrived.body

    def _gate_of(self, writer: str, inode: int) -> asyncio.Semaphore:
        """Return the semaphore of the ranges of a file that were sent ahead and are being written."""
        return self._gates.setdefault((writer, inode), asyncio.Semaphore(RANGES_IN_FLIGHT_MAX))

    @contextlib.asynccontextmanager
    async def _without_ranges_ahead(self, writer: str, inode: int) -> AsyncIterator[None]:
        """Let no range that was sent ahead be written in this context. It may be older than a snapshot, and would
        replace a block after the comparison of the checksums. The caller holds the writer's lock."""
        gate = self._gate_of(writer, inode)
        async with contextlib.AsyncExitStack() as held:
            for _ in range(RANGES_IN_FLIGHT_MAX):
                await held.enter_async_context(gate)
            yield

    def _node(self, writer: str) -> NodeInfo:
        """Return the writer's entry in the view. Raises PeerError if the writer is this node, or is not in the view."""
        if writer == self._me:
            raise PeerError(f"node {writer}", why="a node keeps no copies of its own files")
        node = self._view().nodes.get(writer)
        if node is None:
            raise PeerError(f"node {writer}", why="it is not in this node's view of the cluster")
        return node

    async def _layer_of(self, writer: str) -> ReplicaLayer:
        """Return the replica layer of a writer. The caller holds its lock."""
        layer = self._layers.get(writer)
        if layer is None:
            layer = ReplicaLayer(self.folder_of(writer), is_durable=self._is_durable)
            await self._in_thread(layer.make)
            self._layers[writer] = layer
        return layer

    async def _in_thread(self, work: Callable[..., object], *arguments: object):  # type: ignore[no-untyped-def]
        """Return the result of work in a thread. A cancelled caller keeps its lock until the thread has ended:
        otherwise the next request of that writer would run beside it, and the older content could win."""
        call = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        try:
            return await ended(call)
        except OSError as error:
            raise StoreError(f"directory {self._folder}", why=os.strerror(error.errno or 0)) from error


def forget_persisted(directory: str) -> None:
    """Delete the sync journal of a failover. The writer is back, and uploads the files that this journal does not
    have."""
    for name in os.listdir(directory):
        if name.startswith(JOURNAL_FILE):
            os.unlink(os.path.join(directory, name))


def _bytes_below(directory: str) -> int:
    """Return the bytes that all files below a directory take of the disk."""
    total = 0
    for _, status in Root(os.fsencode(directory)).at(b"/").walk():
        if not stat.S_ISDIR(status.st_mode):
            total += disk_bytes(status)
    return total


def _install(layer: ReplicaLayer, snapshots: list[Snapshot]) -> None:
    for snapshot in snapshots:
        layer.place(snapshot)
