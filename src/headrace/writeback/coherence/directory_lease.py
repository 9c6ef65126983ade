"""Lease to one node the right to create names in a directory: of two nodes that create a name exclusively, only one
succeeds.

A lease is a record that expires with the node's own lease. The node acquires it for the first O_EXCL, mkdir or link in
the directory. It keeps the lease, so later calls need no request, until it has too many (HELD_MAX). Another node
requests the lease by `RecallLease`. The holder first publishes every name that it created there. The new holder then
queries and lists the directory again, so it sees all earlier names.

When a node dies, its leases expire with its own. A node that is cut off stops using them before that time
(`DirectoryFlags.extend_leases`). If anybody with access to the records deletes or overwrites a lease, its holder stops
using it within CHECK_INTERVAL_S. All calls run on the node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import quote, unquote_to_bytes
from weakref import WeakValueDictionary

from headrace.base import boot_clock
from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, DeadlineExceededError, HeadraceError, PeerError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.records import LeasedRecords
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.mark_names import MARKS
from headrace.overlay.upper import Upper
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView
from headrace.wire.peer_messages import RecallLease
from headrace.writeback.observers import WriteObserver

log = logging.getLogger(__name__)

PREFIX = "rights"
"""Prefix of the keys of lease records."""
LEASE_KEPT_S_MIN = 0.02
"""Least time for which a node keeps a lease, in seconds, so that two competing nodes both make progress."""
RETRY_S = 0.02
"""Pause between two attempts to create a lease's record, in seconds."""
HANDOVER_GRACE_S = 0.05
"""Seconds after a release in which this node does not acquire the lease again, so that the requesting node gets it."""
HELD_MAX = 10_000
"""Most leases that a node keeps. Each is a record that all nodes follow, and a node that lost its lease writes all of
its records again. Programs that unpack archives create names exclusively in every directory."""
CHECK_INTERVAL_S = 0.2
"""Pause between two checks of this node's leases, in seconds."""
EXPIRY_MARGIN_S = 0.3
"""Seconds before the end of the node's own lease at which sessions stop using directory leases."""
REFRESH_RETRY_S = 1.0
"""Pause before a directory is refreshed again because a member did not answer, in seconds. Each costs a listing."""
RECALL_LIMIT_S = 10.0
"""Time limit of one request to release a lease, in seconds."""
ACQUIRE_LIMIT_S = 30.0
"""Seconds after which an acquisition fails because another node keeps the lease."""
RECORDS_OUTAGE_S_MAX = 5.0
"""Seconds for which an acquisition is retried while the cluster's records are unavailable."""


class DirectoryLeases(WriteObserver):
    """Hold this node's leases on directories. refresh: updates this node's view of a directory from other nodes and the
    origin; it raises PeerError if a member that may have names there does not answer. publish: returns when other nodes
    can query all names that this node created in a directory."""

    def __init__(
        self,
        me: str,
        records: LeasedRecords,
        peers: PeerClient,
        upper: Upper,
        flags: DirectoryFlags,
        *,
        view: Callable[[], ClusterView],
        refresh: Callable[[bytes], Awaitable[None]],
        publish: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._me = me
        self._records = records
        self._peers = peers
        self._upper = upper
        self._view = view
        self._refresh = refresh
        self._publish = publish
        self._held: dict[bytes, float] = {}
        self._released: dict[bytes, float] = {}
        self._doubted: set[bytes] = set()
        self._stale: set[bytes] = set()
        """Directories whose leases were dropped. Their records may still name this node."""
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._trimming: asyncio.Task[None] | None = None
        self._leases_lost = 0
        self._tasks = OwnedTasks()
        self.marks = flags

    def start(self, dirty: Iterable[bytes] = ()) -> None:
        """Require sessions to request leases from now on."""
        self._invalidate_marks()
        self._leases_lost = self._records.leases_lost
        self._tasks.start(self._maintain())

    async def stop(self) -> None:
        """Stop using the leases. Sessions still request them, and the next run of the node answers."""
        await self._tasks.close()
        self.marks.extend_leases(0.0)
        self.marks.close()

    async def acquire(self, directory: bytes) -> None:
        """Acquire the lease of a directory. On return this node may create names there, for LEASE_KEPT_S_MIN at least,
        and knows those that exist. Raises HeadraceError if another node keeps the lease, or the records are
        unavailable, or the node's own lease is not renewed."""
        async with self._lock_of(directory):
            await self._hold(directory)
            outage = Deadline.after(RECORDS_OUTAGE_S_MAX)
            # a session that tried without these would only call again
            while directory not in self._held or not self._may_use():
                if outage.passed():
                    raise ClusterUnavailableError(
                        os.fsdecode(directory), why="the lease of this node in the cluster is not renewed"
                    )
                await asyncio.sleep(RETRY_S)
                await self._hold(directory)
            self._extend()
            with self._upper.lock:
                self.marks.set(self._upper.at(directory), directory, MARKS.leased)

    async def _hold(self, directory: bytes) -> None:
        """Acquire the lease of a directory, unless this node has it. It has none after its own lease was lost, and
        gets none if that happens meanwhile: another node may have acquired the directory since."""
        self._drop_lost()
        if directory not in self._held:
            leases_lost = self._records.leases_lost
            await self._acquire_record(directory)
            self._stale.discard(directory)
            await self._refresh_from_all(directory)
            if self._records.leases_lost == leases_lost:
                self._held[directory] = monotonic_s()

    async def _refresh_from_all(self, directory: bytes) -> None:
        """Update this node's view of a directory. Wait for a member that may have names there until it answers or
        leaves: it may have created one exclusively, and starts again just now."""
        deadline = Deadline.after(ACQUIRE_LIMIT_S)
        while True:
            try:
                return await self._refresh(directory)
            except PeerError:
                if deadline.passed():
                    raise
            await asyncio.sleep(REFRESH_RETRY_S)

    def _lock_of(self, directory: bytes) -> asyncio.Lock:
        """Return the lock of a directory, which exists as long as somebody has it or waits for it."""
        return self._locks.setdefault(directory, asyncio.Lock())

    def _may_use(self) -> bool:
        """Return whether sessions can use leases now: the node's own lease is valid for some time."""
        is_lost = self._records.leases_lost != self._leases_lost
        return not is_lost and boot_clock.now_s() < self._records.lease_until_s - EXPIRY_MARGIN_S

    def _has_expired(self) -> bool:
        """Return whether the node's own lease was lost, and its directory leases with it."""
        is_lost = self._records.leases_lost != self._leases_lost
        return is_lost or boot_clock.now_s() >= self._records.lease_until_s

    async def release(self, directory: bytes) -> None:
        """Release the lease of a directory. On return other nodes can acquire it, and can query all names that were
        created here."""
        async with self._lock_of(directory):
            since_s = self._held.get(directory)
            if since_s is not None:
                await asyncio.sleep(since_s + LEASE_KEPT_S_MIN - monotonic_s())
                self._clear_mark(directory)
                await self._publish(directory)
                self._drop_lost()
            was_held = self._held.pop(directory, None) is not None
            # also if the lease is not held: a cancelled call may have created the record
            await self._delete_record(directory)
            if was_held:
                self._released[directory] = monotonic_s()

    async def _delete_record(self, directory: bytes) -> None:
        """Delete the record of a lease, unless another node has it, perhaps since a moment ago: this node's own lease
        was lost."""
        await self._records.delete(_key(directory), only=self._me.encode())

    async def _acquire_record(self, directory: bytes) -> None:
        """Create the record of a lease, after its holder has released it."""
        key, mine = _key(directory), self._me.encode()
        deadline, outage = Deadline.after(ACQUIRE_LIMIT_S), Deadline.after(RECORDS_OUTAGE_S_MAX)
        await asyncio.sleep(self._released.pop(directory, 0.0) + HANDOVER_GRACE_S - monotonic_s())
        while True:
            try:
                if await self._records.create(key, mine, leased=True):
                    return
                holder = await self._records.get(key)
                if holder == mine and await self._records.replace(key, mine, mine, leased=True):
                    return  # an earlier run of this node created it
                if holder is not None and holder != mine:
                    await self._recall(directory, os.fsdecode(holder))
                    if await self._records.create(key, mine, leased=True):
                        return
            except ClusterUnavailableError:
                if outage.passed():
                    raise
            if deadline.passed():
                raise DeadlineExceededError(
                    os.fsdecode(directory), why="another node holds the directory lease"
                )
            await asyncio.sleep(RETRY_S)

    async def _recall(self, directory: bytes, holder: str) -> None:
        """Request a lease from its holder. A holder that left the cluster is skipped: its record expires."""
        node = self._view().nodes.get(holder)
        if node is None:
            return  # its record expires with its lease
        try:
            await self._peers.notify(node, RecallLease(directory), Deadline.after(RECALL_LIMIT_S))
        except HeadraceError as error:
            log.info(
                "a directory lease was not released node=%s path=%s error=%s",
                holder,
                os.fsdecode(directory),
                error,
            )
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _on_record(self, key: str, holder: bytes | None) -> None:
        """Note that another node seems to have one of this node's leases. The event may be old, so `_check_doubted`
        reads the record."""
        directory = unquote_to_bytes(key.removeprefix(f"{PREFIX}/"))
        if directory in self._held and holder != self._me.encode():
            self._doubted.add(directory)

    async def _check_doubted(self) -> None:
        """Read the records of doubted leases, and stop using those that no longer name this node. A directory in use
        waits: if it is released, its lease is in use no more."""
        for directory in list(self._doubted):
            lock = self._lock_of(directory)
            if lock.locked():  # a release may take long, and the other leases must be extended
                continue
            async with lock:
                if not await self._is_taken(directory):
                    continue
                if not self._has_expired():  # otherwise the loss of the node's own lease is logged
                    log.error(
                        "another node took a directory lease of this node path=%s", os.fsdecode(directory)
                    )
                del self._held[directory]
                self._clear_mark(directory)
                self._records.disown(_key(directory))

    async def _is_taken(self, directory: bytes) -> bool:
        """Return whether the record of a doubted lease names another node. An event that arrives while it is read is a
        new doubt: the answer may be older."""
        self._doubted.discard(directory)
        if directory not in self._held:
            return False
        try:
            return await self._records.get(_key(directory)) != self._me.encode()
        except HeadraceError:
            self._doubted.add(directory)
            raise

    async def _maintain(self) -> None:
        """Check the leases and extend them with the node's own, until the task is cancelled."""
        await self._records.follow(f"{PREFIX}/", self._on_record)
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                self._trim()
                await self._check_doubted()
                self._drop_lost()
                self._extend()
                await self._delete_stale_records()
            except HeadraceError as error:
                log.info("directory leases were not checked, retrying error=%s", error)
            except Exception:
                log.exception("directory leases were not checked, retrying")

    def _trim(self) -> None:
        """Begin to release the oldest leases of too many. Forget releases that no acquisition has to wait for."""
        now_s = monotonic_s()
        self._released = {
            directory: at_s for directory, at_s in self._released.items() if now_s < at_s + HANDOVER_GRACE_S
        }
        if len(self._held) > HELD_MAX and (self._trimming is None or self._trimming.done()):
            self._trimming = self._tasks.start(self._release_oldest())

    async def _release_oldest(self) -> None:
        try:
            for directory in list(self._held)[:-HELD_MAX]:
                await self.release(directory)
        except HeadraceError as error:
            log.info("a directory lease was not released, retrying error=%s", error)

    def _clear_mark(self, directory: bytes) -> None:
        """Clear the mark of a lease. If the directory was moved away, no mark is valid any more: its own would be valid
        again when it is moved back. Sessions call the node once for each of the other leases."""
        with self._upper.lock:
            is_cleared = self.marks.clear(self._upper.at(directory), MARKS.leased)
        if not is_cleared:
            self._invalidate_marks()
            self._extend()

    def _invalidate_marks(self) -> None:
        """Invalidate all marks, wherever their directories are now."""
        with self._upper.lock:
            self.marks.begin(secrets.randbits(63) | 1)

    def _extend(self) -> None:
        """Allow sessions to use the leases as long as the node's own lease lasts."""
        if self._records.leases_lost == self._leases_lost:  # otherwise the leases have expired
            self.marks.extend_leases(self._records.lease_until_s - EXPIRY_MARGIN_S)

    def _drop_lost(self) -> None:
        """Drop all leases if the node's own was lost, because others may have acquired them."""
        if self._records.leases_lost == self._leases_lost:
            return
        self._invalidate_marks()
        self._stale.update(self._held)
        self._held.clear()
        self._leases_lost = self._records.leases_lost

    async def _delete_stale_records(self) -> None:
        """Delete the records of dropped leases that this node wrote again after the loss. A directory in use waits: the
        lock keeps the record of a lease that is acquired meanwhile."""
        for directory in list(self._stale):
            lock = self._lock_of(directory)
            if lock.locked():  # an acquisition may take long, and the other leases must be extended
                continue
            async with lock:
                if directory not in self._stale:
                    continue
                await self._delete_record(directory)
                self._records.disown(_key(directory))
                self._stale.discard(directory)


def _key(directory: bytes) -> str:
    return f"{PREFIX}/{quote(directory)}"
