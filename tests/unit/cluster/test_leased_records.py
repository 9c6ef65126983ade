"""Leased records are written again after a loss of the lease, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aetcd import EventKind

from headrace.base.errors import ClusterDeniedError, ClusterUnavailableError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.lease_recovery import LeaseRecovery
from headrace.cluster.own_lease import OwnLease
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until


class FakeClient:
    """Reports that a record was deleted, and has a value of it by now."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        self._key = key
        self._value = value
        self.was_read = False

    async def watch_prefix(self, prefix: bytes, *, start_revision: int) -> AsyncIterator[Any]:
        return self._events()

    async def _events(self) -> AsyncIterator[Any]:
        deleted = SimpleNamespace(mod_revision=5, key=self._key, value=b"")
        yield SimpleNamespace(kind=EventKind.DELETE, kv=deleted)

    async def get(self, key: bytes) -> Any:
        assert key == self._key
        self.was_read = True
        return None if self._value is None else SimpleNamespace(value=self._value)


@pytest.mark.expected_warnings("this node's record was deleted")
@pytest.mark.parametrize(("value", "lost"), [(b"mine", 0), (b"of another node", 1), (None, 1)])
async def test_a_record_that_was_written_again_is_no_loss_of_the_lease(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None, lost: int
) -> None:
    """The watch reports its deletion after that."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)
    written: list[str] = []

    async def write_again() -> None:
        written.append("again")

    monkeypatch.setattr(records, "_rewrite_leased", write_again)
    records._leased["rights/f"] = b"mine"
    records._followers.mirror["rights/f"] = b"mine"
    client = FakeClient(b"/rights/f", value)
    await records._watch(client, 1)
    async with OwnedTasks() as tasks:
        tasks.start(records._recovery.check_doubts(client))
        await until(lambda: client.was_read and not records._recovery._restoring.locked())
    assert (records.leases_lost, len(written)) == (lost, lost)


class Restoring:
    """Records of a node whose lease was lost. error: raised when they are written again. passed: set when they may
    be written. reads: of records, one by one."""

    def __init__(self, count: int) -> None:
        self.leased = {f"rights/{number}": b"mine" for number in range(count)}
        self.mirror: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.began, self.passed = asyncio.Event(), asyncio.Event()
        self.writes = self.reads = self.releases = 0
        self.lost: asyncio.Queue[int] = asyncio.Queue()
        self.recovery = LeaseRecovery(
            cast(OwnLease, self), self.leased, self.mirror, value_now=self.value_now, rewrite=self.rewrite
        )

    async def wait_for_loss(self) -> None:
        await self.lost.get()

    def release(self) -> None:
        self.releases += 1

    async def value_now(self, client: object, key: str) -> bytes | None:
        self.reads += 1
        return None if self.writes == 0 else b"mine"

    async def rewrite(self) -> None:
        self.began.set()
        await self.passed.wait()
        if self.error is not None:
            raise self.error
        self.writes += 1


@pytest.mark.expected_warnings("the lease was lost", "this node's record was deleted")
@pytest.mark.parametrize("first", ["the thread", "the watch"])
async def test_a_loss_that_is_reported_twice_is_handled_once(first: str) -> None:
    """The second report released the lease that the first had acquired. Nobody renewed the records written with it."""
    node = Restoring(1000)
    reports = [lambda: node.lost.put_nowait(1), node.recovery.doubt]
    async with OwnedTasks() as tasks:
        tasks.start(node.recovery.handle_losses())
        tasks.start(node.recovery.check_doubts(None))
        for report in reports if first == "the thread" else reports[::-1]:
            report()
            await node.began.wait()
            await pass_time(1.0)
            if first == "the watch":
                break  # the thread reports no loss of a lease that was released
        assert (node.recovery.losses, node.releases, node.writes) == (1, 1, 0)
        node.passed.set()
        await until(lambda: node.writes and not node.recovery._restoring.locked())
        for _ in range(1000):  # the watch is late, and reports all deletions one by one
            node.recovery.doubt()
            await asyncio.sleep(0)
        await pass_time(1.0)
    assert (node.recovery.losses, node.releases, node.writes) == (1, 1, 1)
    assert node.reads <= 2001


@pytest.mark.expected_warnings("the lease was lost", "were not written again")
@pytest.mark.parametrize("error", [ClusterDeniedError("etcd", why="no"), RuntimeError("a defect")])
async def test_records_that_could_not_be_written_again_are_tried_again(error: Exception) -> None:
    """If etcd refused only that, its connection stayed, and nobody wrote them until another record was deleted."""
    node = Restoring(1)
    node.error = error
    node.passed.set()
    async with OwnedTasks() as tasks:
        tasks.start(node.recovery.handle_losses())
        tasks.start(node.recovery.check_doubts(None))
        node.lost.put_nowait(1)
        await node.began.wait()
        await pass_time(1.0)
        assert node.writes == 0
        node.error = None
        node.recovery.retry()
        await until(lambda: node.writes == 1)
        node.recovery.retry()
        await pass_time(1.0)
    assert (node.recovery.losses, node.writes) == (1, 1)


async def test_a_record_that_could_not_be_written_is_not_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its caller was told that it failed: such as a drain."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)

    async def acquire() -> int:
        return 7

    async def fail(_: Any) -> None:
        raise ClusterUnavailableError("etcd", why="it does not answer")

    monkeypatch.setattr(records._lease, "acquire", acquire)
    monkeypatch.setattr(records._connection, "call", fail)
    records._leased["nodes/a"] = b"as it was"
    with pytest.raises(ClusterUnavailableError):
        await records.put("nodes/a", b"drained", leased=True)
    with pytest.raises(ClusterUnavailableError):
        await records.put("nodes/b", b"new", leased=True)
    assert records._leased == {"nodes/a": b"as it was"}


async def test_a_record_that_is_deleted_meanwhile_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as the lease of a directory that another node requests after an outage of etcd."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)
    written: list[str] = []

    async def acquire() -> int:
        return 7

    async def exchange(key: str, raw: bytes | None, new: bytes, lease: int | None = None) -> bool:
        written.append(key)
        await records.delete("rights/b")
        await records.put("rights/c", b"new")
        return True

    async def answer(_: Any) -> None:
        return None

    monkeypatch.setattr(records._lease, "acquire", acquire)
    monkeypatch.setattr(records._connection, "call", answer)
    monkeypatch.setattr(records, "_exchange_raw", exchange)
    records._leased |= {"rights/a": b"mine", "rights/b": b"mine", "rights/c": b"mine", "rights/d": b"mine"}
    await records._rewrite_leased()
    assert written == ["rights/a", "rights/d"]
    assert records._leased == {"rights/a": b"mine", "rights/d": b"mine"}


async def test_a_record_that_is_deleted_while_it_is_written_again_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch reports that it was deleted, and the node must not write it once more."""
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)

    async def acquire() -> int:
        return 7

    async def exchange(key: str, raw: bytes | None, new: bytes, lease: int | None = None) -> bool:
        await records.delete(key)
        return True

    async def answer(_: Any) -> None:
        return None

    monkeypatch.setattr(records._lease, "acquire", acquire)
    monkeypatch.setattr(records._connection, "call", answer)
    monkeypatch.setattr(records, "_exchange_raw", exchange)
    records._leased["rights/a"] = b"mine"
    await records._rewrite_leased()
    assert not records._leased


@pytest.mark.expected_warnings("etcd is unavailable")
@pytest.mark.parametrize(
    ("error", "reason"),
    [(TimeoutError(), "no answer within 3 s"), (OSError(), "OSError"), (OSError("no route"), "no route")],
)
async def test_the_warning_that_etcd_is_unavailable_says_why(
    caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    records = EtcdRecords(["127.0.0.1:1"], prefix="/", lease_s=10)
    records._report_failure(error)
    assert [record.getMessage().partition("error=")[2] for record in caplog.records] == [reason]
