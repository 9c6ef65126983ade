"""Records in etcd, version 3. Knows nothing of Headrace.

One task (`_follow`) keeps a mirror of all records below the prefix: it takes all of them, then watches from that
revision on; whenever the watch breaks, or etcd does not answer a small question within some seconds, it begins anew
with the next endpoint, and tells the differences. A thread (`lease.py`) renews the lease; when it was lost, a new one
is taken and every leased record is written again.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.base import boot_clock
from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError
from headrace.cluster.beliefs import NOTHING, Beliefs
from headrace.cluster.etcd_client import EtcdAccess, EtcdConnector
from headrace.cluster.kept_records import KeptRecords
from headrace.cluster.lease import LeaseKeeper
from headrace.cluster.records import Followers, Heard, RecordSeals

log = logging.getLogger(__name__)

CALL_S = 3.0
CHECK_S = 1.0
"""How often etcd is asked whether it still answers; a watch on a host that is gone is silent for ever."""
PAUSE_S = 0.3
DENIED_PAUSE_S = 5.0
"""Where etcd refuses this node; each password that it compares costs it much."""
CANCEL_S = 0.5
PROBLEM_CHARACTERS_MAX = 400
"""Of what grpc says of a connection that fails."""
SEAL_AGAIN_S = 60.0

Answer = TypeVar("Answer")


class _RenewedError(Exception):
    """Certificates or password changed: the connection is made anew, and nothing else is amiss."""


class EtcdRecords:
    """endpoints: "host:port" of the members. lease_s: of leased records. On one asyncio loop."""

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
        self._endpoints = endpoints
        self._prefix = prefix
        self._ttl_s = max(1, round(lease_s))
        self._client: Any = None
        self._turn = 0
        self._followers = Followers()
        self._beliefs = Beliefs(seals, kept, self._followers.mirror)
        self._is_new = True
        self._leased: dict[str, bytes] = {}
        self._lease: int | None = None
        self._losses: asyncio.Queue[int] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper = LeaseKeeper(self._connector, endpoints, ttl_s=self._ttl_s, on_lost=self._tell_loss)
        self._lease_lock = asyncio.Lock()
        self._tasks: builtins.list[asyncio.Task[None]] = []
        self._first = asyncio.Event()
        self._denied: ClusterDeniedError | None = None
        self._trouble = "it does not answer"
        self.revision = 0
        self.away_since_s: float | None = None
        self.leases_lost = 0

    async def start(self) -> None:
        """All records are known on return; nothing happens where it was started. ClusterUnavailableError,
        ClusterDeniedError."""
        if self._tasks:
            return
        self._first.clear()
        self._denied = None
        if self._is_new:
            self._is_new = False
            self._beliefs.remember()
        self._tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._heed_losses())]
        try:
            async with asyncio.timeout(CALL_S * (len(self._endpoints) + 1)):
                await self._first.wait()
        except TimeoutError:
            await self.close()
            raise ClusterUnavailableError(
                f"etcd at {', '.join(self._endpoints)}", why=self._trouble, hint="is it running?"
            ) from None
        if self._denied is not None:
            await self.close()
            raise self._denied

    async def close(self) -> None:
        """Leased records are gone on return, where etcd answers."""
        tasks, self._tasks = self._tasks, []
        await _end(tasks)
        await asyncio.to_thread(self._keeper.stop)
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(ClusterUnavailableError):
                await self._call(lambda client: client.revoke_lease(lease))
        await self._drop_client()
        await self._keep_beliefs()

    @property
    def lease_until_s(self) -> float:
        return self._keeper.until_s

    # ------------------------------------------------------------ records

    async def get(self, key: str) -> bytes | None:
        found = await self._call(lambda client: client.get(self._key(key)))
        return self._beliefs.meaning(key, None if found is None else bytes(found.value))

    async def list(self, prefix: str) -> builtins.dict[str, bytes]:
        found = await self._call(lambda client: client.get_prefix(self._key(prefix)))
        raw = {self._name(one.key): bytes(one.value) for one in found}
        return self._beliefs.meanings(raw, prefix)

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:  # noqa: FBT001, FBT002
        if leased:
            self._leased[key] = value
        else:
            self._leased.pop(key, None)
        lease = await self._own_lease() if leased else None
        closed = self._beliefs.close(key, value)
        await self._call(lambda client: client.put(self._key(key), closed, lease=lease))
        self._beliefs.wrote(key, value, closed)

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:  # noqa: FBT001, FBT002
        lease = await self._own_lease() if leased else None
        held = self._beliefs.held(key)
        ended = held.raw if held is not None and held.value is None else None
        return await self._exchange(key, ended, value, lease)

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        leased = leased or key in self._leased
        lease = await self._own_lease() if leased else None
        if not self._beliefs.are_sealed:
            return await self._exchange(key, old, new, lease)
        held = self._beliefs.held(key)
        if held is None or held.value != old:  # another one is there, or was when this node last looked
            await self.get(key)
            held = self._beliefs.held(key)
        if held is None or held.value != old:
            return False
        return await self._exchange(key, held.raw, new, lease)

    async def _exchange(self, key: str, raw: bytes | None, value: bytes, lease: int | None) -> bool:
        """Whether what was there was this; None: nothing."""
        closed = self._beliefs.close(key, value)
        exchanged = await self._exchange_raw(key, raw, closed, lease)
        if exchanged:
            self._beliefs.wrote(key, value, closed)
        if exchanged and lease is not None:
            self._leased[key] = value
        return exchanged

    async def _exchange_raw(self, key: str, raw: bytes | None, new: bytes, lease: int | None = None) -> bool:
        name = self._key(key)

        async def ask(client: Any) -> bool:
            words = client.transactions
            same = words.version(name) == 0 if raw is None else words.value(name) == raw
            done, _ = await client.transaction(
                compare=[same], success=[words.put(name, new, lease)], failure=[]
            )
            return bool(done)

        return await self._call(ask)

    async def delete(self, key: str, *, unless: str = "") -> None:
        if not unless:
            self._leased.pop(key, None)
        name, end = self._key(key), self._beliefs.end_of(key)

        async def ask(client: Any) -> None:
            words = client.transactions
            await client.transaction(
                compare=[words.version(self._key(unless)) == 0] if unless else [],
                success=[words.delete(name) if end is None else words.put(name, end)],
                failure=[],
            )

        await self._call(ask)

    async def follow(self, prefix: str, callback: Heard) -> None:
        self._followers.add(prefix, callback)

    def disown(self, key: str) -> None:
        """A leased record that another node has now: it is not written again."""
        self._leased.pop(key, None)

    # ------------------------------------------------------------ what is believed

    async def _look_after_beliefs(self, *, seals: bool) -> None:
        """Records that others spoiled are put back, and what is believed is kept for the next run. seals: those that
        end some day are made anew: by who may, and is the first."""
        await self._keep_beliefs()
        try:
            for key, (spoiled, good) in self._beliefs.to_put_back().items():
                done = await self._exchange_raw(key, spoiled, good)
                self._beliefs.tried_to_put_back(key, done=done)
            for key, value in self._beliefs.aging().items() if seals else ():
                await self.replace(key, value, value)
        except ClusterUnavailableError:
            return  # _follow tells of it

    async def _keep_beliefs(self) -> None:
        changed, gone = self._beliefs.changes()
        if changed or gone:
            await asyncio.to_thread(self._beliefs.keep, changed, gone)

    # ------------------------------------------------------------ inside

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode("utf-8", "surrogateescape")

    def _name(self, key: bytes) -> str:
        return key.decode("utf-8", "surrogateescape")[len(self._prefix) :]

    async def _call(self, ask: Callable[[Any], Awaitable[Answer]]) -> Answer:
        """With one more endpoint tried when the first does not answer."""
        problem, left, renewed = "", min(2, len(self._endpoints)), False
        while left > 0:
            left -= 1
            client = await self._connected()
            try:
                async with asyncio.timeout(CALL_S):
                    return await ask(client)
            except TimeoutError:
                problem = f"no answer within {CALL_S:g} s"
            except asyncio.CancelledError:
                if _being_cancelled():
                    raise
                problem = "the connection was closed"  # grpc cancels what is under way
            except Exception as error:  # noqa: BLE001 - whatever the library and grpc raise is etcd being away
                problem = str(error) or type(error).__name__
                denied = self._connector.denial_of(error, self._endpoints)
                if self._connector.is_stale(error) and not renewed:
                    left, renewed = max(left, 1), True
                elif denied is not None:
                    raise denied from None
            if client is self._client:
                await self._drop_client()
        raise ClusterUnavailableError(
            f"etcd at {', '.join(self._endpoints)}", why=_line(problem) or "no answer"
        )

    async def _connected(self) -> Any:
        if self._client is None:
            self._client = self._connector.client(self._endpoints[self._turn % len(self._endpoints)])
        return self._client

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        self._turn += 1
        if client is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await client.close()

    async def _follow(self) -> None:
        while True:
            self._keeper.loop_lives()
            try:
                await self._follow_once()
            except (Exception, asyncio.CancelledError) as error:
                if _being_cancelled():
                    raise
                if not isinstance(error, _RenewedError):
                    self._lost(error)
            await self._drop_client()
            await asyncio.sleep(DENIED_PAUSE_S if self._denied else PAUSE_S)

    def _lost(self, error: BaseException) -> None:
        """Log it once. Who waits for the start hears at once where etcd refuses this node."""
        self._trouble = _line(error) or self._trouble
        self._denied = denied = self._connector.denial_of(error, self._endpoints)
        if denied is not None and not self._first.is_set():
            self._first.set()
        elif self.away_since_s is None:
            self.away_since_s = time.monotonic()
            log.warning("etcd is away, the last records are used error=%s", denied or _line(error))

    async def _follow_once(self) -> None:
        client = await self._connected()
        async with asyncio.timeout(CALL_S):
            found = await client.get_prefix(self._key(""))
        if self.away_since_s is not None:
            log.warning("etcd is back away_s=%.0f", time.monotonic() - self.away_since_s)
            self.away_since_s = None
        self.revision = found.header.revision
        self._denied = None
        raw = {self._name(one.key): bytes(one.value) for one in found}
        self._followers.tell_all(self._beliefs.meanings(raw, newest=True))
        await self._write_leased_again()
        self._first.set()
        checking = asyncio.ensure_future(self._check(client))
        watching = asyncio.ensure_future(self._watch(client, found.header.revision + 1))
        try:
            done, _ = await asyncio.wait((checking, watching), return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            await _end([checking, watching])

    async def _watch(self, client: Any, revision: int) -> None:
        async with asyncio.timeout(CALL_S):
            watch = await client.watch_prefix(self._key(""), start_revision=revision)
        deleted = self._connector.delete_event
        async for event in watch:
            self.revision = max(self.revision, event.kv.mod_revision)
            name = self._name(event.kv.key)
            raw = None if event.kind == deleted else bytes(event.kv.value)
            value = self._beliefs.meaning(name, raw, newest=True)
            is_there = value is not None and (value != NOTHING or not self._beliefs.are_sealed)
            self._followers.tell(name, value if is_there else None)
            if not is_there and name in self._leased:
                log.error("own record is gone: this node was out of the cluster key=%s", name)
                await self._write_leased_again()

    async def _check(self, client: Any) -> None:
        sealed_s = float("-inf")
        while True:
            await asyncio.sleep(CHECK_S)
            self._keeper.loop_lives()
            now_s = time.monotonic()
            old = now_s - sealed_s >= SEAL_AGAIN_S
            sealed_s = now_s if old else sealed_s
            await self._look_after_beliefs(seals=old)
            if self._connector.renewed:
                raise _RenewedError
            async with asyncio.timeout(CALL_S):
                await client.get(self._key(""))

    async def _own_lease(self) -> int:
        async with self._lease_lock:
            if self._lease is None:
                self._loop = asyncio.get_running_loop()
                asked_s = boot_clock.now_s()
                lease = await self._call(lambda client: client.lease(self._ttl_s))
                self._lease = int(lease.id)
                self._keeper.keep(self._lease, asked_s + self._ttl_s)
            return self._lease

    def _tell_loss(self, lease: int) -> None:
        """In the keeper's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._losses.put_nowait, lease)

    async def _heed_losses(self) -> None:
        while True:
            if await self._losses.get() != self._lease:
                continue
            log.error("lease lost: this node was out of the cluster prefix=%s", self._prefix)
            self.leases_lost += 1
            self._let_go_lease()
            try:
                await self._claim_again()
            except ClusterUnavailableError:
                continue  # _follow tells of it, and writes them again
            except Exception:
                log.exception("leased records are not written again")  # and must go on

    def _let_go_lease(self) -> None:
        self._lease = None
        self._keeper.let_go()

    async def _write_leased_again(self) -> None:
        """What is not there although it should be: etcd lost its data, or the lease ended while it was away."""
        if any(self._followers.mirror.get(key) is None for key in self._leased):
            self.leases_lost += 1
            self._let_go_lease()
            await self._claim_again()

    async def _claim_again(self) -> None:
        """Never over a record that another node wrote meanwhile: this one is told of it, and must not fight."""
        for key, value in list_of(self._leased):
            if await self.create(key, value, leased=True) or await self.replace(
                key, value, value, leased=True
            ):
                continue
            if self._beliefs.are_sealed and await self.get(key) == NOTHING:
                await self.replace(key, NOTHING, value, leased=True)


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def list_of(table: dict[str, bytes]) -> builtins.list[tuple[str, bytes]]:
    return builtins.list(table.items())


async def _end(tasks: builtins.list[asyncio.Task[None]]) -> None:
    """Ended on return. Cancelled once more where the library lost it: wait_for of Python 3.11 does, when what it waits
    for happens just then."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_S)
    await asyncio.gather(*tasks, return_exceptions=True)


def _line(text: object) -> str:
    return " ".join(str(text).split())[:PROBLEM_CHARACTERS_MAX]
