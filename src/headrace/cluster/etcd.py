"""Store records in etcd, version 3. This module does not depend on the meaning of records.

One task (`_follow`) keeps a mirror of all records below the prefix: it reads all of them, then watches from that
revision on. If the watch breaks, or etcd does not answer a small request within some seconds, the task starts again
with the next endpoint. It then publishes the differences.

A thread (`lease.py`) renews the lease. After the lease was lost, this node acquires a new one and writes every leased
record again (`lease_recovery.py`).
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError
from headrace.base.tasks import OwnedTasks, being_cancelled
from headrace.cluster.beliefs import NOTHING, Beliefs
from headrace.cluster.etcd_client import EtcdAccess, EtcdConnector
from headrace.cluster.etcd_connection import CALL_S, EtcdConnection, reason_of
from headrace.cluster.kept_records import KeptRecords
from headrace.cluster.lease_recovery import LeaseRecovery
from headrace.cluster.own_lease import OwnLease
from headrace.cluster.records import Followers, OnRecord, RecordSeals

CHECK_S = 1.0
"""The interval of small requests that check whether etcd answers: a watch on a dead host stays silent forever."""
PAUSE_S = 0.3
DENIED_PAUSE_S = 5.0
"""The pause after etcd refused this node, because each comparison of a password costs etcd much."""
CANCEL_S = 0.5
RESEAL_S = 60.0


class _RenewedError(Exception):
    """Certificates or password changed: a new connection is needed, and nothing else is wrong."""


class EtcdRecords:
    """Implements LeasedRecords in etcd, on one event loop. endpoints: "host:port" of the members. lease_s: the time
    of the lease."""

    def __init__(
        self,
        endpoints: builtins.list[str],
        *,
        prefix: str,
        lease_s: float,
        access: EtcdAccess | None = None,
        seals: RecordSeals | None = None,
        kept: KeptRecords | None = None,
    ) -> None:
        self._connector = EtcdConnector(access or EtcdAccess(), timeout_s=CALL_S)
        self._connection = EtcdConnection(self._connector, endpoints)
        self.availability = self._connection.availability
        self._lease = OwnLease(self._connection, self._connector, endpoints, ttl_s=max(1, round(lease_s)))
        self._start_limit_s = CALL_S * (len(endpoints) + 1)
        self._prefix = prefix
        self._followers = Followers()
        self._beliefs = Beliefs(seals, kept, self._followers.mirror)
        self._is_new = True
        self._leased: dict[str, bytes] = {}
        self._recovery = LeaseRecovery(
            self._lease,
            self._leased,
            self._followers.mirror,
            value_now=self._value_now,
            rewrite=lambda: self._rewrite_leased(),
        )
        self._tasks = OwnedTasks(again_s=CANCEL_S)
        self._first = asyncio.Event()
        self._denied: ClusterDeniedError | None = None
        self.revision = 0

    async def start(self) -> None:
        """Connect and load all records. A second call does nothing. Raise ClusterUnavailableError or
        ClusterDeniedError."""
        if self._tasks:
            return
        self._first.clear()
        self._denied = None
        if self._is_new:
            self._is_new = False
            self._beliefs.remember()
        self._tasks.start(self._follow())
        self._tasks.start(self._recovery.handle_losses())
        try:
            async with asyncio.timeout(self._start_limit_s):
                await self._first.wait()
        except TimeoutError:
            await self.close()
            raise self._connection.unavailable(self.availability.last_error, hint="is it running?") from None
        if self._denied is not None:
            await self.close()
            raise self._denied

    async def close(self) -> None:
        """Disconnect from etcd. On return leased records are deleted, provided that etcd answers."""
        await self._tasks.close()
        await self._lease.close()
        await self._connection.drop()
        await self._beliefs.keep_changes()

    @property
    def leases_lost(self) -> int:
        return self._recovery.losses

    @property
    def lease_until_s(self) -> float:
        return self._lease.valid_until_s

    # ------------------------------------------------------------ records

    async def get(self, key: str) -> bytes | None:
        row = await self._connection.call(lambda client: client.get(self._key(key)))
        return self._beliefs.meaning(key, None if row is None else bytes(row.value))

    async def list(self, prefix: str) -> builtins.dict[str, bytes]:
        rows = await self._connection.call(lambda client: client.get_prefix(self._key(prefix)))
        raw = {self._name(row.key): bytes(row.value) for row in rows}
        return self._beliefs.meanings(raw, prefix)

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:  # noqa: FBT001, FBT002
        lease = await self._lease.acquire() if leased else None
        closed = self._beliefs.close(key, value)
        await self._connection.write(lambda client: client.put(self._key(key), closed, lease=lease))
        self._beliefs.wrote(key, value, closed)
        if leased:
            self._leased[key] = value
        else:
            self._leased.pop(key, None)

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:  # noqa: FBT001, FBT002
        lease = await self._lease.acquire() if leased else None
        is_created = await self._exchange(key, self._beliefs.raw_of_ended(key), value, lease)
        if is_created and leased:
            self._leased[key] = value
        return is_created

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        leased = leased or key in self._leased
        lease = await self._lease.acquire() if leased else None
        has_value, raw = await _raw_of(self._beliefs, key, old, get=self.get)
        is_replaced = has_value and await self._exchange(key, raw, new, lease)
        if is_replaced and leased:
            self._leased[key] = new
        return is_replaced

    async def _exchange(self, key: str, raw: bytes | None, value: bytes, lease: int | None) -> bool:
        """Write a record if these bytes are in etcd (None: no record). Return whether they were."""
        closed = self._beliefs.close(key, value)
        exchanged = await self._exchange_raw(key, raw, closed, lease)
        if exchanged:
            self._beliefs.wrote(key, value, closed)
        return exchanged

    async def _exchange_raw(self, key: str, raw: bytes | None, new: bytes, lease: int | None = None) -> bool:
        """Write these bytes if those are there. A request whose answer was lost is sent again: when it finds its own
        bytes, the first one wrote them."""
        name, requests = self._key(key), 0

        async def transact(client: Any) -> bool:
            nonlocal requests
            requests += 1
            operations = client.transactions
            condition = operations.version(name) == 0 if raw is None else operations.value(name) == raw
            done, answers = await client.transaction(
                compare=[condition],
                success=[operations.put(name, new, lease)],
                failure=[operations.get(name)],
            )
            return bool(done) or (requests > 1 and [bytes(value) for value, _ in answers[0]] == [new])

        return await self._connection.write(transact)

    async def delete(self, key: str, *, unless: str = "", only: bytes | None = None) -> None:
        if not unless:
            self._leased.pop(key, None)
        raw: bytes | None = None
        if only is not None:
            has_value, raw = await _raw_of(self._beliefs, key, only, get=self.get)
            if not has_value or raw is None:
                return
        name, end = self._key(key), self._beliefs.end_of(key)

        async def transact(client: Any) -> None:
            operations = client.transactions
            is_unhindered = [operations.version(self._key(unless)) == 0] if unless else []
            is_the_one = [operations.value(name) == raw] if raw is not None else []
            await client.transaction(
                compare=is_unhindered + is_the_one,
                success=[operations.delete(name) if end is None else operations.put(name, end)],
                failure=[],
            )

        # a full database deletes, so only a record that takes the place of another one shows that it writes
        send = self._connection.call if end is None else self._connection.write
        await send(transact)

    async def follow(self, prefix: str, callback: OnRecord) -> None:
        self._followers.add(prefix, callback)

    def disown(self, key: str) -> None:
        """Stop writing a leased record again after a loss: another node has it now."""
        self._leased.pop(key, None)

    # ------------------------------------------------------------ accepted records

    async def _maintain_beliefs(self, *, seals: bool) -> None:
        """Restore records that others spoiled, and keep the accepted ones for the next run. seals: also renew seals
        that age, and look at refused records again; the first node that may seal a record does so."""
        await self._beliefs.keep_changes()
        try:
            for key, (spoiled, good) in self._beliefs.to_put_back().items():
                is_restored = await self._exchange_raw(key, spoiled, good)
                self._beliefs.tried_to_put_back(key, done=is_restored)
            for key, value in self._beliefs.aging().items() if seals else ():
                await self.replace(key, value, value)
            for key, value in self._beliefs.accepted_late().items() if seals else ():
                self._followers.publish(key, value)
        except ClusterUnavailableError:
            return  # _follow logs it, or the connection

    # ------------------------------------------------------------ internal

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode("utf-8", "surrogateescape")

    def _name(self, key: bytes) -> str:
        return key.decode("utf-8", "surrogateescape")[len(self._prefix) :]

    async def _follow(self) -> None:
        while True:
            self._lease.report_loop_alive()
            try:
                await self._follow_once()
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled():
                    raise
                if not isinstance(error, _RenewedError):
                    self._report_failure(error)
            await self._connection.drop()
            await asyncio.sleep(DENIED_PAUSE_S if self._denied else PAUSE_S)

    def _report_failure(self, error: BaseException) -> None:
        """Log a failure once. When etcd refuses this node, end the wait of `start` at once."""
        self.availability.last_error = reason_of(error)
        self._denied = denied = self._connection.denial_of(error)
        if denied is not None and not self._first.is_set():
            self._first.set()
        else:
            self.availability.note_failure(denied or self.availability.last_error)

    async def _follow_once(self) -> None:
        client = self._connection.client()
        async with asyncio.timeout(CALL_S):
            rows = await client.get_prefix(self._key(""))
        self.revision = rows.header.revision
        self._denied = None
        raw = {self._name(row.key): bytes(row.value) for row in rows}
        self._followers.publish_all(self._beliefs.meanings(raw, newest=True))
        await self._recovery.restore_missing(client)
        self.availability.note_answer()
        self._first.set()
        async with OwnedTasks(Exception, again_s=CANCEL_S) as tasks:
            started = (
                tasks.start(self._check(client)),
                tasks.start(self._recovery.check_doubts(client)),
                tasks.start(self._watch(client, self.revision + 1)),
            )
            ended, _ = await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()

    async def _watch(self, client: Any, revision: int) -> None:
        async with asyncio.timeout(CALL_S):
            watch = await client.watch_prefix(self._key(""), start_revision=revision)
        deleted = self._connector.delete_event
        async for event in watch:
            self.revision = max(self.revision, event.kv.mod_revision)
            name = self._name(event.kv.key)
            raw = None if event.kind == deleted else bytes(event.kv.value)
            value = self._beliefs.meaning(name, raw, newest=True)
            exists = value is not None and (value != NOTHING or not self._beliefs.are_sealed)
            self._followers.publish(name, value if exists else None)
            if not exists and name in self._leased:
                self._recovery.doubt()

    async def _check(self, client: Any) -> None:
        sealed_s = float("-inf")
        while True:
            await asyncio.sleep(CHECK_S)
            self._lease.report_loop_alive()
            now_s = time.monotonic()
            is_due = now_s - sealed_s >= RESEAL_S
            sealed_s = now_s if is_due else sealed_s
            await self._maintain_beliefs(seals=is_due)
            self._recovery.retry()
            if self._connector.renewed:
                raise _RenewedError
            async with asyncio.timeout(CALL_S):
                await client.get(self._key(""))

    async def _value_now(self, client: Any, key: str) -> bytes | None:
        """Return the value of a record in etcd."""
        async with asyncio.timeout(CALL_S):
            row = await client.get(self._key(key))
        return self._beliefs.meaning(key, None if row is None else bytes(row.value))

    async def _rewrite_leased(self) -> None:
        """Write leased records again, for `LeaseRecovery`, but never over a record that another node wrote meanwhile.
        The watch reports that one, and the two nodes must not overwrite each other. A record that this node deletes or
        replaces meanwhile is left out."""
        for key, value in [*self._leased.items()]:
            lease = await self._lease.acquire()
            if self._leased.get(key) != value:
                continue
            if await self._exchange(key, self._beliefs.raw_of_ended(key), value, lease):
                continue
            is_spoiled = self._beliefs.are_sealed and await self.get(key) == NOTHING
            old = NOTHING if is_spoiled else value
            has_value, raw = await _raw_of(self._beliefs, key, old, get=self.get)
            if has_value:
                await self._exchange(key, raw, value, lease)


async def _raw_of(
    beliefs: Beliefs, key: str, value: bytes, *, get: Callable[[str], Awaitable[bytes | None]]
) -> tuple[bool, bytes | None]:
    """Return whether a record has a value, as far as this node knows, and the bytes that etcd then has."""
    if not beliefs.are_sealed:
        return True, value
    held = beliefs.held(key)
    if held is None or held.value != value:  # another value is there, or was when this node last read it
        await get(key)
        held = beliefs.held(key)
    return (False, None) if held is None or held.value != value else (True, held.raw)
