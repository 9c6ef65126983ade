"""Lease to one node the right to create names in a directory: of two nodes that create a name exclusively, one does.

A lease is a record that ends with the node's own lease. The node acquires it with the first O_EXCL, mkdir or link in
the directory, and keeps it, so later ones cost nothing. Another node that wants it requests it (`RecallLease`). The
holder publishes everything that it created there before it answers. The new holder queries and lists again, so it sees
all earlier names.

A node that dies loses its leases with its own. One that is cut off stops using them before that
(`DirectoryFlags.extend_leases`). If somebody who can write records takes a record away or overwrites it, the node stops
within CHECK_INTERVAL_S. All on the node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import quote, unquote_to_bytes

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, DeadlineExceededError, HeadraceError
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
LEASE_KEPT_S_MIN = 0.02
"""A right that was taken is kept so long at least, so that two who both want it get something done."""
RETRY_S = 0.02
HANDOVER_GRACE_S = 0.05
"""Who gave up a right leaves it so long to who asked for it."""
CHECK_INTERVAL_S = 0.2
EXPIRY_MARGIN_S = 0.3
RECALL_LIMIT_S = 10.0
ACQUIRE_LIMIT_S = 30.0
RECORDS_OUTAGE_S_MAX = 5.0
"""How long the records may be away."""


class DirectoryLeases(WriteObserver):
    """Hold the rights of this node to make names. look: makes this node's view of a folder as new as the other nodes
    and the origin are. tell: this node's own names of a folder are known to those who ask, on return."""

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
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._leases_lost = 0
        self._tasks = OwnedTasks()
        self.marks = flags

    def start(self, dirty: Iterable[bytes] = ()) -> None:
        """Make sessions ask for leases from now on."""
        self.marks.begin(secrets.randbits(63) | 1)
        self._leases_lost = self._records.leases_lost
        self._tasks.start(self._maintain())

    async def stop(self) -> None:
        """End the leases with the node's own. Sessions continue to ask: the next node answers them."""
        await self._tasks.close()
        self.marks.extend_leases(0.0)
        self.marks.close()

    async def acquire(self, folder: bytes) -> None:
        """Acquire the lease of a directory. On return, and for a moment at least, this node may create names there and
        knows those that exist. HeadraceError: it can't be had."""
        async with self._locks.setdefault(folder, asyncio.Lock()):
            if self._records.leases_lost != self._leases_lost:
                await self._drop_all()
            if folder not in self._held:
                await self._acquire_record(folder)
                await self._refresh(folder)
                self._held[folder] = monotonic_s()
            self._extend()
            with self._upper.lock:
                self.marks.set(self._upper.at(folder), folder, MARKS.leased)

    async def release(self, folder: bytes) -> None:
        """Release the lease of a directory. On return another node may take it, and knows all names that were created
        here."""
        async with self._locks.setdefault(folder, asyncio.Lock()):
            since_s = self._held.get(folder)
            if since_s is None:  # perhaps it was taken by a call that was broken off
                if await self._records.get(_key(folder)) == self._me.encode():
                    await self._records.delete(_key(folder))
                return
            await asyncio.sleep(since_s + LEASE_KEPT_S_MIN - monotonic_s())
            with self._upper.lock:
                self.marks.clear(self._upper.at(folder), MARKS.leased)
            await self._publish(folder)
            del self._held[folder]
            await self._records.delete(_key(folder))
            self._released[folder] = monotonic_s()

    async def _acquire_record(self, folder: bytes) -> None:
        key, mine = _key(folder), self._me.encode()
        deadline, outage = Deadline.after(ACQUIRE_LIMIT_S), Deadline.after(RECORDS_OUTAGE_S_MAX)
        await asyncio.sleep(self._released.pop(folder, 0.0) + HANDOVER_GRACE_S - monotonic_s())
        while True:
            try:
                if await self._records.create(key, mine, leased=True):
                    return
                holder = await self._records.get(key)
                if holder == mine and await self._records.replace(key, mine, mine, leased=True):
                    return  # of an earlier run
                if holder is not None and holder != mine:
                    await self._recall(folder, os.fsdecode(holder))
                    if await self._records.create(key, mine, leased=True):
                        return
            except ClusterUnavailableError:
                if outage.passed():
                    raise
            if deadline.passed():
                raise DeadlineExceededError(os.fsdecode(folder), why="another node holds the directory lease")
            await asyncio.sleep(RETRY_S)

    async def _recall(self, folder: bytes, holder: str) -> None:
        node = self._view().nodes.get(holder)
        if node is None:
            return  # its record goes with its lease
        try:
            await self._peers.notify(node, RecallLease(folder), Deadline.after(RECALL_LIMIT_S))
        except HeadraceError as error:
            log.info(
                "a directory lease was not released node=%s path=%s error=%s",
                holder,
                os.fsdecode(folder),
                error,
            )
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _on_record(self, key: str, holder: bytes | None) -> None:
        """Note that another node seems to have a lease of ours. The event may be old, so the record itself is read."""
        folder = unquote_to_bytes(key.removeprefix(f"{PREFIX}/"))
        if folder in self._held and holder != self._me.encode():
            self._doubted.add(folder)

    async def _check_doubted(self) -> None:
        for folder in list(self._doubted):
            async with self._locks.setdefault(folder, asyncio.Lock()):
                if folder in self._held and await self._records.get(_key(folder)) != self._me.encode():
                    log.error("another node took a directory lease of this node path=%s", os.fsdecode(folder))
                    del self._held[folder]
                    with self._upper.lock:
                        self.marks.clear(self._upper.at(folder), MARKS.leased)
                    self._records.disown(_key(folder))
                self._doubted.discard(folder)

    async def _maintain(self) -> None:
        await self._records.follow(f"{PREFIX}/", self._on_record)
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                await self._check_doubted()
                if self._records.leases_lost != self._leases_lost:
                    await self._drop_all()
                self._extend()
            except HeadraceError as error:
                log.info("directory leases were not checked, retrying error=%s", error)
            except Exception:
                log.exception("directory leases were not checked, retrying")

    def _extend(self) -> None:
        if self._records.leases_lost == self._leases_lost:  # else the rights of before are none any more
            self.marks.extend_leases(self._records.lease_until_s - EXPIRY_MARGIN_S)

    async def _drop_all(self) -> None:
        """Drop all leases after the node's own was lost: others may have taken them. Records that were written again
        since are deleted."""
        held, self._held = self._held, {}
        with self._upper.lock:
            for folder in held:
                self.marks.clear(self._upper.at(folder), MARKS.leased)
        for folder in held:
            if await self._records.get(_key(folder)) == self._me.encode():
                await self._records.delete(_key(folder))
            self._records.disown(_key(folder))
        self._leases_lost = self._records.leases_lost


def _key(folder: bytes) -> str:
    return f"{PREFIX}/{quote(folder)}"
