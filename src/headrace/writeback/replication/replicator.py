"""Replicate unpersisted changes of this node to other nodes (`back:2` and more): the writer's side. The replica's side
is replica_host.py.

All files of a node have the same replicas, chosen by a hash of the node ids, with nodes of other zones first. Each
replica has a stream, which sends it the changes in order. It sends snapshots of names, not operations, so a repeated
snapshot does no harm. A `close` waits until each replica has a snapshot of the file that was taken after the close
(`secure`).

Large files are sent ahead, several ranges at a time. The stream then sends only their checksums. By these the replica
finds the blocks that it lacks, and fetches them from this node. A new stream, at the start or for a new replica, sends
everything that is dirty, and the replica deletes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import stat
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from headrace.base.beneath import SafePath
from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline, transfer_limit_s
from headrace.base.errors import HeadraceError, PathNotFoundError, PeerError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.base.namespace_path import split
from headrace.base.tasks import OwnedTasks, all_of
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import is_whiteout
from headrace.overlay.snapshot import SMALL_BYTES_MAX, EntryType, Snapshot
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import FileRange, Replicate, ReplicateAhead
from headrace.writeback.replication.dirty_files import DirtyFileReader
from headrace.writeback.replication.placement import ReplicaSetRecords, choose_replicas
from headrace.writeback.replication.replica_layer import RANGE_BYTES

log = logging.getLogger(__name__)

BATCH_NAMES = 256
"""Most paths of one pass over the pending changes. A pass begins at once when that many wait."""
BATCH_BYTES = 4 << 20
"""Bytes of file contents after which a pass sends the snapshots that it has."""
REQUEST_BYTES = 3 << 20
"""Bytes of one request. A node accepts 4 MiB (docs/protocol.md), and disconnects the sender of more."""
SNAPSHOT_BYTES = 1 << 10
"""Bytes of a snapshot without its path and contents, at most: names of fields, numbers, the token of a version."""
SUM_BYTES = 9
"""Bytes of one checksum in a request."""
FILE_BYTES_MAX = REQUEST_BYTES // SUM_BYTES * BLOCK_SIZE_BYTES
"""Bytes of a file (341 GiB) whose checksums fit into one request. A larger one has no replica."""
SNAPSHOT_ATTEMPTS_MAX = 3
"""Times that a snapshot is repeated because another file took the name meanwhile."""
RANGES_IN_FLIGHT_MAX = 4
"""Most ranges of one file that are on their way to one replica."""
REPLICATE_LIMIT_S = 30.0
"""Base time limit of one request to a replica, in seconds. The transfer of the bytes is added."""
RETRY_S = 1.0
"""Pause after a failure, in seconds."""
UNREAD_RETRY_S_MAX = 30.0
"""Longest pause before names that the disk could not read are tried again, in seconds. It begins with RETRY_S and
doubles."""
UNREAD_WARNED_MAX = 20
"""Most names that are reported with a warning while they can't be read. The log has the others as information."""
BATCH_DELAY_S = 0.05
"""Most seconds for which changes wait to share one request, unless a caller waits for one of them."""
FOLLOW_INTERVAL_S = 0.1
"""Pause between two looks at the size of a growing file, in seconds."""
FOLLOW_QUIET_S = 30.0
"""Seconds without growth after which a file is no longer sent ahead."""
StreamKey = tuple[str, str]
"""Id and instance of a node."""
ABSENT_STATE = Snapshot(b"/", EntryType.GONE).state
"""The state of a path that a replica does not have."""
DIRECTORIES = (EntryType.DIRECTORY, EntryType.REMOVED)
"""The types of entries that have others below them."""
OFFER_TOKEN_PREFIX = "written/"
"""Prefix of the version token by which a replica fetches an offered file. The file's inode number in hex follows."""


class OfferedFile(DirtyFileReader):
    """Read a file as it is at the moment of each read. fd: duplicated; the caller keeps its own."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(os.dup(fd), name)

    def ready(self, start: int, end: int) -> bool:
        return os.fstat(self._fd).st_size >= end

    async def wait(self, start: int, end: int) -> None:
        raise StoreError(self._name, why=f"it has fewer than {end} bytes now")


class ReplicaOffers:
    """Hold the open files of the layer that replicas may fetch at present, by inode number."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}

    @contextmanager
    def offer(self, safe_path: SafePath) -> Iterator[os.stat_result]:
        """Offer a file to replicas while the context lasts. Raises OSError, also if the path has no file."""
        fd = safe_path.open(os.O_RDONLY | os.O_NONBLOCK)
        status = os.fstat(fd)
        if MARKS.single_owner and is_whiteout(status):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "removed just now", repr(safe_path))
        inode = status.st_ino
        known, users = self._open.get(inode, (fd, 0))
        self._open[inode] = known, users + 1
        try:
            yield status
        finally:
            if known != fd:
                os.close(fd)
            known, users = self._open[inode]
            self._open[inode] = known, users - 1
            if users == 1:
                del self._open[inode]
                os.close(known)

    def open(self, wanted: FileRange) -> OfferedFile:
        """Open an offered file. Raises PathNotFoundError if the file is not offered."""
        inode = wanted.token.removeprefix(OFFER_TOKEN_PREFIX)
        try:
            offered = self._open.get(int(inode, 16))
        except ValueError:
            offered = None
        if offered is None:
            raise PathNotFoundError(f"written file {inode[:80]}", why="it is no longer offered")
        return OfferedFile(offered[0], os.fsdecode(wanted.path))


class SentStates:
    """Hold the states of names that a replica has, by path."""

    def __init__(self) -> None:
        self._states: dict[bytes, tuple[object, ...]] = {}
        self._parents: set[bytes] = set()
        """The directories of all these names, up to the root."""

    def get(self, path: bytes, default: tuple[object, ...] | None) -> tuple[object, ...] | None:
        return self._states.get(path, default)

    def clear(self) -> None:
        self._states.clear()
        self._parents.clear()

    def note(self, snapshot: Snapshot) -> None:
        """Note that the replica has a snapshot. Where it has no directory any more, it deleted everything below."""
        if snapshot.shape not in DIRECTORIES:
            self._forget_below(snapshot.path)
        if snapshot.shape == EntryType.GONE:
            self._states.pop(snapshot.path, None)
            return
        self._states[snapshot.path] = snapshot.state
        parent = split(snapshot.path)[0]
        while parent not in self._parents:
            self._parents.add(parent)
            parent = split(parent)[0]

    def below(self, path: bytes) -> list[bytes]:
        """Return the paths below a directory."""
        return list(_below(self._states, path)) if path in self._parents else []

    def _forget_below(self, path: bytes) -> None:
        for gone in self.below(path):
            del self._states[gone]
        if path in self._parents:
            self._parents -= {path, *_below(self._parents, path)}


def _below(paths: Iterable[bytes], top: bytes) -> Iterator[bytes]:
    prefix = top.rstrip(b"/") + b"/"
    return (path for path in paths if path != top and path.startswith(prefix))


class ReplicaStream:
    """Send changes to one replica, in order."""

    def __init__(self, replicator: Replicator, node: NodeInfo) -> None:
        self.node = node
        self._replicator = replicator
        self._pending: dict[bytes, list[asyncio.Future[None]]] = {}
        self._sent = SentStates()
        self._sent_ahead: dict[int, int] = {}
        self._sending: dict[int, asyncio.Lock] = {}
        self._sent_first: set[bytes] = set()
        self._unread: set[bytes] = set()
        """Names that the disk could not read. The replica keeps what it has of them."""
        self._unlisted: set[bytes] = set()
        """Directories whose names the disk could not read for the complete list."""
        self._retry_s, self._retry_at_s = RETRY_S, math.inf
        self._has_begun = False
        """The replica has the beginning of a complete list, which ends when all names could be read."""
        self._is_list_open = False
        """The complete list has all names that could be read, and waits for the others."""
        self._urgent = asyncio.Event()
        self.has_caught_up = asyncio.Event()
        """Set once the replica has everything that was dirty when the stream began."""
        self._stop_error: PeerError | None = None
        self._tasks = OwnedTasks()
        self._tasks.start(self._run())

    def note(self, paths: Iterable[bytes]) -> None:
        """Note changed paths. A large file is sent ahead first, beside the stream, because other changes would wait for
        it."""
        if self._stop_error is not None:
            return
        for path in paths:
            if path in self._pending or path in self._sent_first:
                continue
            if self.has_caught_up.is_set() and self._replicator.is_large(path):
                self._sent_first.add(path)
                self._tasks.start(self._send_first(path))
            else:
                self._pending[path] = []
        if len(self._pending) >= BATCH_NAMES:
            self._urgent.set()

    async def _send_first(self, path: bytes) -> None:
        """Send a large file ahead, then queue its path."""
        try:
            await self.send_ahead(path, last=True)
        except HeadraceError as error:
            log.info("a growing file was not replicated ahead path=%s error=%s", os.fsdecode(path), error)
        finally:
            self._sent_first.discard(path)
        self._pending.setdefault(path, [])

    async def secure(self, path: bytes) -> None:
        """Return when the replica has a snapshot of the path that was taken after this call. Raises PeerError with the
        replica's reason, or the stream's if it is stopped. Raises StoreError if the path can't be read now."""
        await self.send_ahead(path, last=True)
        if self._stop_error is not None:  # while the blocks were sent, or before this task ran
            raise self._stop_error.copied()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.setdefault(path, []).append(done)
        self._urgent.set()
        await done

    async def send_ahead(self, path: bytes, *, last: bool = False) -> None:
        """Send the blocks that a large file gained. last: its checksums are needed next, and are computed at the same
        time."""
        with (
            contextlib.suppress(OSError),
            self._replicator.offers.offer(self._replicator.locate(path)) as status,
        ):
            if not SMALL_BYTES_MAX < status.st_size <= FILE_BYTES_MAX:
                return
            async with self._sending.setdefault(status.st_ino, asyncio.Lock()):
                await all_of([self._send_ahead(status), *([self._replicator.take(path)] if last else [])])

    async def _send_ahead(self, status: os.stat_result) -> None:
        """Send the complete blocks that an offered file gained."""
        inode = status.st_ino
        sent = self._sent_ahead.get(inode, 0)
        sent = 0 if sent > status.st_size else sent // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
        end = status.st_size // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
        gate = asyncio.Semaphore(RANGES_IN_FLIGHT_MAX)

        async def send_range(start: int) -> None:
            async with gate:
                request = ReplicateAhead(self._replicator.me, inode, start, min(start + RANGE_BYTES, end))
                await self._replicator.peers.replicate(
                    self.node, request, Deadline.after(transfer_limit_s(REPLICATE_LIMIT_S, RANGE_BYTES))
                )

        await all_of(send_range(start) for start in range(sent, end, RANGE_BYTES))
        self._sent_ahead[inode] = max(sent, end)

    def stop(self, why: str) -> None:
        """Cancel the tasks. Every waiting or later `secure` fails with PeerError and this reason."""
        self._tasks.cancel()
        self._stop_error = PeerError(f"node {self.node.id}", why=why)
        self._fail_waiting(self._stop_error)
        self._pending.clear()

    def _fail_waiting(self, error: PeerError) -> None:
        """Fail every `secure` that waits now. Behind thousands of other changes it would wait for a failure of each
        batch before it."""
        for waiting in self._pending.values():
            _fail_all(waiting, error)
            waiting.clear()

    async def closed(self) -> None:
        """Return when the tasks of a stopped stream have ended."""
        await self._tasks.close()

    async def _run(self) -> None:
        """Send pending changes until the stream is stopped. A failure of the replica restarts the stream with
        everything dirty."""
        while True:
            try:
                if not self._pending and self._has_begun:
                    self._urgent.clear()  # what was urgent went with a complete list
                    await self._sleep()
                    self._retry_unread()
                    continue
                await self._sleep()
                self._urgent.clear()
                self._retry_unread()
                await self._send_pending()
            except HeadraceError as error:
                log.warning("changes were not replicated, retrying node=%s error=%s", self.node.id, error)
                if isinstance(error, PeerError):
                    self.has_caught_up.clear()
                    self._fail_waiting(error)
                self._has_begun = self.has_caught_up.is_set()
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("changes were not replicated, retrying node=%s", self.node.id)
                self._has_begun = self.has_caught_up.is_set()
                await asyncio.sleep(RETRY_S)

    async def _sleep(self) -> None:
        """Wait for more changes, at most BATCH_DELAY_S, or until one is urgent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BATCH_DELAY_S):
                await self._urgent.wait()

    async def _send_pending(self) -> None:
        """Send pending changes; a new stream sends everything that is dirty. Names that can't be read fail alone. They
        keep a complete list from its end: the replica would delete what it has of them."""
        begin = not self._has_begun
        if begin:
            self._is_list_open = False
            self._sent.clear()
            self._sent_ahead.clear()
            names, unread = await self._replicator.names()
            self.note(names)
            for path, error in unread.items():
                self._note_unread(path, error)
            self._unlisted = set(unread)
            self._unread &= {*names, *unread}
        is_list = not self.has_caught_up.is_set()
        last = False
        while not last:
            paths = list(self._pending)[:BATCH_NAMES]
            waiting = {path: self._pending.pop(path) for path in paths}
            last = not is_list or not self._pending
            try:
                failed = await self._send_snapshots_of(paths, begin=begin, end=is_list and last)
            except BaseException as error:
                why = PeerError(f"node {self.node.id}", why="broken off")
                for futures in waiting.values():
                    _fail_all(futures, error if isinstance(error, HeadraceError) else why)
                self.note(paths)
                raise
            self._settle(waiting, failed)
            begin, self._has_begun = False, True
        self._is_list_open = is_list and bool(self._unread or self._unlisted)
        if not self._is_list_open:
            self.has_caught_up.set()

    def _settle(
        self, waiting: dict[bytes, list[asyncio.Future[None]]], failed: dict[bytes, StoreError]
    ) -> None:
        """End the waits of callers whose paths were sent, or could not be read."""
        for path, futures in waiting.items():
            if path in failed:
                _fail_all(futures, failed[path])
                continue
            for done in futures:
                if not done.done():
                    done.set_result(None)

    def _note_unread(self, path: bytes, error: HeadraceError) -> None:
        """Note a path that can't be read now, and name it in the log once."""
        if path not in self._unread and path not in self._unlisted:
            self._retry_s = self._retry_s if self._unread else RETRY_S
            level = logging.WARNING if len(self._unread) < UNREAD_WARNED_MAX else logging.INFO
            log.log(
                level,
                "a name was not replicated, retrying node=%s path=%s error=%s",
                *(self.node.id, os.fsdecode(path), error),
            )
        self._unread.add(path)
        self._retry_at_s = min(self._retry_at_s, monotonic_s() + self._retry_s)

    def _retry_unread(self) -> None:
        """Queue the names that could not be read again, after a pause. If a directory was among them, begin a complete
        list anew."""
        if monotonic_s() < self._retry_at_s:
            return
        self._retry_at_s, self._retry_s = math.inf, min(UNREAD_RETRY_S_MAX, 2 * self._retry_s)
        for path in self._unread:
            self._pending.setdefault(path, [])
        if self._unlisted:
            self._has_begun = False

    async def _send_snapshots_of(
        self, paths: list[bytes], *, begin: bool, end: bool
    ) -> dict[bytes, StoreError]:
        """Send snapshots of paths, except those whose state the replica has. begin, end: bounds of a complete list. It
        ends only if all names could be read. Return the errors of the paths that could not."""
        failed: dict[bytes, StoreError] = {}
        with contextlib.ExitStack() as offered:
            snapshots: list[Snapshot] = []
            size_bytes = 0
            for path in paths:
                if self._replicator.size_bytes(path) > FILE_BYTES_MAX:  # its callers persist it
                    failed[path] = StoreError(os.fsdecode(path), why="it is too large for a replica")
                    snapshot = Snapshot(path, EntryType.GONE)
                else:
                    try:
                        snapshot = await self._snapshot_and_offer(path, offered)
                    except StoreError as error:
                        failed[path] = error
                        self._note_unread(path, error)
                        continue
                self._unread.discard(path)
                if self._sent.get(path, self._unsent_state) == snapshot.state:
                    continue
                snapshots += [snapshot, *self._removed_below(snapshot)]
                size_bytes += len(snapshot.content)
                if size_bytes > BATCH_BYTES:
                    await self._send(snapshots, begin=begin, end=False)
                    begin, snapshots, size_bytes = False, [], 0
            end = end and not (self._unread or self._unlisted)
            if snapshots or begin or end:
                await self._send(snapshots, begin=begin, end=end)
        return failed

    @property
    def _unsent_state(self) -> tuple[object, ...] | None:
        """Return the state of a path that was not sent; None if the replica may have it from before the list."""
        return None if self._is_list_open else ABSENT_STATE

    async def _snapshot_and_offer(self, path: bytes, offered: contextlib.ExitStack) -> Snapshot:
        """Return a snapshot of a path. A large file is offered as well, so that the replica can fetch it after a rename
        or removal."""
        snapshot = await self._replicator.take(path)
        for _ in range(SNAPSHOT_ATTEMPTS_MAX):
            if not snapshot.is_large:
                break
            with contextlib.suppress(OSError):
                if (
                    offered.enter_context(self._replicator.offers.offer(self._replicator.locate(path))).st_ino
                    == snapshot.inode
                ):
                    break
            snapshot = await self._replicator.take(path)  # another file has taken the name
        return snapshot

    def _removed_below(self, snapshot: Snapshot) -> list[Snapshot]:
        """Return GONE snapshots of names that moved away with a renamed directory, because no session reports each of
        them. The old place may keep whiteouts."""
        if snapshot.shape not in DIRECTORIES:
            return []
        below = self._sent.below(snapshot.path)
        return [
            Snapshot(path, EntryType.GONE) for path in below if not self._replicator.locate(path).exists()
        ]

    async def _send(self, snapshots: list[Snapshot], *, begin: bool, end: bool) -> None:
        """Send snapshots, and note that the replica has them. Present names precede absent ones: the replica finds the
        blocks of a renamed file under its old name."""
        parts = _parts(
            sorted(snapshots, key=lambda snapshot: snapshot.shape in (EntryType.GONE, EntryType.WHITEOUT))
        )
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            await self._send_part(part, begin=begin and number == 0, end=end and is_last)

    async def _send_part(self, snapshots: list[Snapshot], *, begin: bool, end: bool) -> None:
        request = Replicate(self._replicator.me, snapshots, begin=begin, end=end)
        limit_s = transfer_limit_s(REPLICATE_LIMIT_S, sum(snapshot.size_bytes for snapshot in snapshots))
        await self._replicator.peers.replicate(self.node, request, Deadline.after(limit_s))
        for snapshot in snapshots:
            self._sent.note(snapshot)
            if snapshot.is_large:
                self._sent_ahead[snapshot.inode] = snapshot.size_bytes
                self._sending.pop(snapshot.inode, None)
        self._replicator.snapshots_sent += len(snapshots)


def _parts(snapshots: list[Snapshot]) -> list[list[Snapshot]]:
    """Divide snapshots into requests that a node accepts, at least one. A snapshot that is larger has its own."""
    parts: list[list[Snapshot]] = [[]]
    size_bytes = 0
    for snapshot in snapshots:
        encoded_bytes = SNAPSHOT_BYTES + len(snapshot.path) + len(snapshot.content) + len(snapshot.extras)
        encoded_bytes += SUM_BYTES * len(snapshot.sums)
        if parts[-1] and size_bytes + encoded_bytes > REQUEST_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(snapshot)
        size_bytes += encoded_bytes
    return parts


class Replicator:
    """Keep replicas of this node's dirty files on other nodes.

    count: most nodes with a file's bytes, this one included. locate: returns where a path lies in the layer. take:
    returns the snapshot of a path, which is GONE if the path is persisted. names: returns all paths of the layer that
    are replicated, and those that could not be read, with their errors.
    """

    def __init__(
        self,
        me: str,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        records: ReplicaSetRecords,
        count: int,
        locate: Callable[[bytes], SafePath],
        take: Callable[[bytes], Awaitable[Snapshot]],
        names: Callable[[], Awaitable[tuple[list[bytes], dict[bytes, StoreError]]]],
    ) -> None:
        self.me = me
        self.peers = peers
        self.locate = locate
        self.names = names
        self.take = take
        self.offers = ReplicaOffers()
        self.snapshots_sent = 0
        self._view = view
        self._count = count
        self._records = records
        self._streams: dict[StreamKey, ReplicaStream] = {}
        self._former: set[str] = set()
        """Former replicas that the cluster's record still names."""
        self._former_streams: dict[StreamKey, ReplicaStream] = {}
        """Their streams, as long as they are in the view. A failover of older files would be a conflict with those of
        the new replicas, or precede them."""
        self._dropped: set[StreamKey] = set()
        self._strangers: set[StreamKey] = set()
        """Nodes outside the replica set that the running task has to notify."""
        self._tasks = OwnedTasks()

    def is_large(self, path: bytes) -> bool:
        """Return whether a path has a file whose bytes do not fit into a snapshot."""
        return self.size_bytes(path) > SMALL_BYTES_MAX

    def size_bytes(self, path: bytes) -> int:
        """Return the size of the file at a path; 0 if there is none, or it can't be read now."""
        try:
            status = self.locate(path).lstat()
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def note(self, paths: Iterable[bytes]) -> None:
        """Note paths that changed or were persisted."""
        noted = list(paths)
        for stream in (*self._current(self._count), *self._former_streams.values()):
            stream.note(noted)

    async def secure(self, path: bytes, copies: int) -> None:
        """Return when that many nodes, this one included, have the file at a path. Raises PeerError if there are too
        few nodes, or one does not answer."""
        streams = self._current(copies)
        for former in self._former_streams.values():
            former.note([path])
        if len(streams) < copies - 1:
            raise PeerError(
                f"{copies} copies of {os.fsdecode(path)}",
                why=f"there are {len(streams)} other nodes to keep one",
            )
        await asyncio.gather(*(stream.secure(path) for stream in streams))

    async def follow(self, path: bytes, copies: int) -> None:
        """Send a growing file ahead until it has not grown for FOLLOW_QUIET_S."""
        size, quiet_s = -1, 0.0
        while quiet_s < FOLLOW_QUIET_S:
            await asyncio.sleep(FOLLOW_INTERVAL_S)
            try:
                status = self.locate(path).lstat()
            except OSError:
                return
            quiet_s = quiet_s + FOLLOW_INTERVAL_S if status.st_size == size else 0.0
            grown, size = status.st_size - max(size, 0) > 0, status.st_size
            if grown:
                try:
                    await asyncio.gather(*(stream.send_ahead(path) for stream in self._current(copies)))
                except HeadraceError as error:
                    log.info(
                        "a growing file was not replicated ahead path=%s error=%s", os.fsdecode(path), error
                    )
                    return

    def on_view(self) -> None:
        """Start streams to new replicas, and stop those to nodes that left."""
        self._current(self._count)

    async def stop(self) -> None:
        """Stop all streams. Every waiting `secure` fails with PeerError."""
        await self._tasks.close()
        streams = [*self._streams.values(), *self._former_streams.values()]
        self._streams, self._former_streams = {}, {}
        for stream in streams:
            stream.stop("this node stops")
            await stream.closed()

    def status(self) -> dict[str, object]:
        return {
            "copies": self._count,
            "copies_on": [node for node, _ in self._streams],
            "copies_sent": self.snapshots_sent,
        }

    def _current(self, copies: int) -> list[ReplicaStream]:
        """Return the first `copies` - 1 streams of the present view. Streams to nodes that left are stopped, those to
        other nodes outside the replica set when it has everything."""
        able = choose_replicas(self._view(), self.me)
        nodes = able[: self._count - 1]
        keys = [(node.id, node.instance) for node in nodes]
        for key in [key for key in self._streams if key not in keys]:
            self._former_streams[key] = self._streams.pop(key)
            self._former.add(key[0])
        self._stop_former(but={(node.id, node.instance) for node in self._view().nodes.values()})
        new = [(key, node) for key, node in zip(keys, nodes, strict=True) if key not in self._streams]
        for key, node in new:
            is_former = key in self._former_streams
            self._streams[key] = self._former_streams.pop(key) if is_former else ReplicaStream(self, node)
        strangers = {(node.id, node.instance) for node in able} - {*keys, *self._dropped}
        self._strangers &= strangers
        if new or strangers - self._strangers:
            self._strangers = strangers
            self._tasks.cancel()
            self._tasks.start(self._record_replicas())
        return [self._streams[key] for key in keys[: copies - 1]]

    def _stop_former(self, *, but: Collection[StreamKey] = ()) -> None:
        """Stop the streams to former replicas."""
        for key in [key for key in self._former_streams if key not in but]:
            self._former_streams.pop(key).stop("it holds no copies any more")

    async def _record_replicas(self) -> None:
        """Record the replica set in the cluster. Former replicas stay in it until the new ones have everything. Then
        other nodes delete the replicas that they still have."""
        while True:
            try:
                now = {id for id, _ in self._streams}
                await self._records.put(self.me, now | self._former)
                await asyncio.gather(*(stream.has_caught_up.wait() for stream in self._streams.values()))
                await self._records.put(self.me, now)
                self._former.clear()
                self._stop_former()
                await self._drop_stale_replicas()
                return
            except HeadraceError as error:
                log.info("the replicas were not recorded in the cluster, retrying error=%s", error)
            except Exception:
                log.exception("the replicas were not recorded in the cluster, retrying")
            await asyncio.sleep(RETRY_S)

    async def _drop_stale_replicas(self) -> None:
        """Have nodes outside the replica set delete their replicas of this node's files."""
        for node in choose_replicas(self._view(), self.me):
            key = node.id, node.instance
            if key in self._streams or key in self._dropped:
                continue
            await self.peers.replicate(
                node, Replicate(self.me, [], begin=True, end=True), Deadline.after(REPLICATE_LIMIT_S)
            )
            self._dropped.add(key)


def _fail_all(waiting: list[asyncio.Future[None]], error: HeadraceError) -> None:
    """Fail each future that is not done with a copy of the error."""
    for done in waiting:
        if not done.done():
            done.set_exception(error.copied())
