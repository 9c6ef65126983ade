"""Leases of directories: which of two nodes may create names exclusively there, by records in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, PeerError
from headrace.base.tasks import OwnedTasks
from headrace.base.write_modes import WriteModes
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.namespace.mounts import MountTable
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.upper import Upper
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import RecallLease
from headrace.writeback.coherence import directory_lease
from headrace.writeback.coherence.directory_lease import DirectoryLeases
from headrace.writeback.coherence.pending_names import PendingNamesObserver, PublishedFlags
from tests.unit.writeback.late_answer import LateAnswer
from tests.unit.writeback.publisher_fixture import (
    PublisherFixture,
    view_of,
)

pytestmark = pytest.mark.timeout(60)


@pytest.mark.expected_warnings("headrace.writeback.coherence.publisher")
async def test_a_lease_is_not_released_before_the_names_are_recorded(tmp_path: Path) -> None:
    """The next holder reads the records to know whom to query. Without an entry it would create a name once more."""
    upper, here = Upper(str(tmp_path)), PublisherFixture()
    upper.make()
    upper.at(b"/d/x").make_directories(0o755)
    layer = SimpleNamespace(upper=upper, modes=WriteModes.parse("back"))
    flags = PublishedFlags(upper, DirectoryFlags(upper.marks_path))
    observer = PendingNamesObserver(layer, here.registry, flags, mounts=MountTable())  # type: ignore[arg-type]
    here.registry.start()
    here.records.away = True
    here.write(b"/d/x")
    await observer.before_acknowledged(b"/d/x")
    with pytest.raises(ClusterUnavailableError):
        await observer.publish_all_of(b"/d")
    here.records.away = False
    await observer.publish_all_of(b"/d")
    assert here.cover().covers(b"/d")
    await here.registry.stop()


class Two:
    """Two nodes that make names in one folder. on_look: called when a node looks at the folder next."""

    def __init__(self, folder: Path) -> None:
        self.on_look: Callable[[], Awaitable[None]] | None = None
        shared = Followers()
        self.rights: dict[str, DirectoryLeases] = {}
        self.records: dict[str, EmbeddedRecords] = {}
        self.uppers: dict[str, Upper] = {}
        self.publishers: list[str] = []
        for id in ("n0", "n1"):
            upper = self.uppers[id] = Upper(str(folder / id))
            upper.make()
            upper.at(b"/d").mkdir(0o755)
            self.records[id] = EmbeddedRecords(shared)
            self.rights[id] = DirectoryLeases(
                id,
                self.records[id],
                self,  # type: ignore[arg-type]
                upper,
                DirectoryFlags(upper.marks_path),
                view=lambda: view_of("n0", "n1"),
                refresh=self.look,
                publish=lambda _, id=id: self.tell_of(id),  # type: ignore[misc]
            )

    async def look(self, folder: bytes) -> None:
        on_look, self.on_look = self.on_look, None
        if on_look is not None:
            await on_look()

    async def tell_of(self, id: str) -> None:
        self.publishers.append(id)

    async def notify(self, node: NodeInfo, request: RecallLease, deadline: Deadline) -> None:
        await self.rights[node.id].release(request.path)

    def has(self, id: str) -> bool:
        return self.rights[id].marks.is_leased(self.uppers[id].at(b"/d"), b"/d")


async def test_one_at_a_time_has_the_right(tmp_path: Path) -> None:
    two = Two(tmp_path)
    for right in two.rights.values():
        right.start()

    async def wants(id: str) -> None:
        for _ in range(10):
            await two.rights[id].acquire(b"/d")
            assert [other for other in two.rights if two.has(other)] == [id]
            await pass_time(0.01)

    await asyncio.gather(wants("n0"), wants("n1"))
    assert {"n0", "n1"} == set(two.publishers)
    holder = next(id for id in two.rights if two.has(id))
    upper = two.uppers[holder]
    upper.at(b"/d").rename(upper.at(b"/e"))
    assert not two.rights[holder].marks.is_leased(upper.at(b"/e"), b"/e")
    other = "n1" if holder == "n0" else "n0"
    await two.records[holder].close()  # its lease ends
    await two.rights[other].acquire(b"/d")
    assert two.has(other)
    for right in two.rights.values():
        await right.stop()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_lease_does_not_come_back_with_a_directory_that_was_moved_away(
    tmp_path: Path, is_lost: bool
) -> None:
    """The node could not clear the mark of the directory, which was elsewhere. Other leases can still be used."""
    two = Two(tmp_path)
    rights, upper = two.rights["n0"], two.uppers["n0"]
    upper.at(b"/other").mkdir(0o755)
    for right in two.rights.values():
        right.start()
    await rights.acquire(b"/d")
    await rights.acquire(b"/other")
    upper.at(b"/d").rename(upper.at(b"/e"))
    two.records["n0"].leases_lost += is_lost
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    await two.rights["n1"].acquire(b"/d")
    upper.at(b"/e").rename(upper.at(b"/d"))
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    assert (two.has("n0"), two.has("n1")) == (False, True)
    await rights.acquire(b"/other")
    assert rights.marks.is_leased(upper.at(b"/other"), b"/other")
    await rights.acquire(b"/d")
    assert (two.has("n0"), two.has("n1")) == (True, False)
    for right in two.rights.values():
        await right.stop()


async def test_a_right_ends_with_the_lease(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.rights["n0"].start()
    await two.rights["n0"].acquire(b"/d")
    assert two.has("n0")
    two.records["n0"].lease_until_s = 0.0  # nobody renews it
    await until(lambda: not two.has("n0"))
    two.records["n0"].lease_until_s = float("inf")
    two.records["n0"].leases_lost += 1
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    assert await two.records["n0"].get("rights//d") is None
    assert not two.has("n0")
    await two.rights["n0"].stop()


@pytest.mark.parametrize("forged", [b"n1", b"nobody", b"", None])
@pytest.mark.expected_warnings("headrace.writeback.coherence.directory_lease")
async def test_a_right_whose_record_somebody_changed_ends(tmp_path: Path, forged: bytes | None) -> None:
    """Records of rights are not sealed: who can write there could make two nodes take one right."""
    two = Two(tmp_path)
    two.rights["n0"].start()
    await two.rights["n0"].acquire(b"/d")
    assert two.has("n0")
    if forged is None:
        await two.records["n1"].delete("rights//d")
    else:
        await two.records["n1"].put("rights//d", forged)
    await until(lambda: not two.has("n0"))
    await two.records["n1"].delete("rights//d")
    await two.rights["n0"].acquire(b"/d")
    assert two.has("n0")
    await two.rights["n0"].stop()


@pytest.mark.expected_warnings("headrace.writeback.coherence.directory_lease")
async def test_a_lease_that_is_taken_while_its_record_is_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event arrives before the answer, which is older."""
    two = Two(tmp_path)
    records, others = two.records["n0"], two.records["n1"]
    two.rights["n0"].start()
    await two.rights["n0"].acquire(b"/d")
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    answer = LateAnswer(monkeypatch, records, lambda: others.put("rights//d", b"n1"))
    for holder in (b"n1", b"n0"):
        await others.put("rights//d", holder)
    await until(lambda: answer.reads)
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    assert not two.has("n0")
    await two.rights["n0"].stop()


async def test_a_node_keeps_a_limited_number_of_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_lease, "HELD_MAX", 3)
    two = Two(tmp_path)
    rights, records, upper = two.rights["n0"], two.records["n0"], two.uppers["n0"]
    rights.start()
    directories = [b"/%d" % number for number in range(10)]
    for directory in directories:
        upper.at(directory).mkdir(0o755)
        await rights.acquire(directory)
    assert len(await records.list("rights/")) == 10

    async def is_trimmed() -> bool:
        return sorted(await records.list("rights/")) == ["rights//7", "rights//8", "rights//9"]

    await until(is_trimmed)
    assert [path for path in directories if rights.marks.is_leased(upper.at(path), path)] == directories[7:]
    assert len(two.publishers) == 7
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    assert not rights._locks and not rights._released
    await rights.acquire(b"/0")
    assert rights.marks.is_leased(upper.at(b"/0"), b"/0")
    await rights.stop()


async def test_a_lease_waits_for_a_member_whose_names_are_not_known(tmp_path: Path) -> None:
    """It may have created a name exclusively in its last run."""
    two = Two(tmp_path)
    two.rights["n0"].start()
    failures = 0

    async def look() -> None:
        nonlocal failures
        assert not two.has("n0")
        if failures < 5:
            failures, two.on_look = failures + 1, look
            raise PeerError("node n1", why="it starts, or stops")

    two.on_look = look
    await two.rights["n0"].acquire(b"/d")
    assert failures == 5 and two.has("n0")
    await two.rights["n0"].stop()


async def test_a_right_that_ended_with_the_lease_may_be_taken(tmp_path: Path) -> None:
    """That is no error: after an outage a node may see the other one's record before it sees that its lease was
    lost."""
    two = Two(tmp_path)
    two.rights["n0"].start()
    await two.rights["n0"].acquire(b"/d")
    two.records["n0"].lease_until_s = 0.0
    await two.records["n1"].put("rights//d", b"n1")
    await until(lambda: b"/d" not in two.rights["n0"]._held)
    assert not two.has("n0") and await two.records["n0"].get("rights//d") == b"n1"
    await two.rights["n0"].stop()


async def test_without_the_records_nobody_has_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> bool:
        raise ClusterUnavailableError("records", why="the test says so")

    two = Two(tmp_path)
    two.rights["n0"].start()
    monkeypatch.setattr(two.records["n0"], "create", away)
    began_s = monotonic_s()
    with pytest.raises(ClusterUnavailableError):
        await two.rights["n0"].acquire(b"/d")
    assert 0 <= monotonic_s() - began_s - directory_lease.RECORDS_OUTAGE_S_MAX < 1
    assert not two.has("n0")
    await two.rights["n0"].stop()


async def test_a_lease_that_is_held_can_not_be_used_without_that_of_the_node(tmp_path: Path) -> None:
    """etcd is away, or the node's own lease is not renewed. A session would ask again and again."""
    two = Two(tmp_path)
    two.rights["n0"].start()
    await two.rights["n0"].acquire(b"/d")
    two.records["n0"].lease_until_s = 0.0
    began_s = monotonic_s()
    with pytest.raises(ClusterUnavailableError):
        await two.rights["n0"].acquire(b"/d")
    assert monotonic_s() - began_s == pytest.approx(directory_lease.RECORDS_OUTAGE_S_MAX, abs=0.1)
    assert not two.has("n0")
    two.records["n0"].lease_until_s = float("inf")
    await two.rights["n0"].acquire(b"/d")
    assert two.has("n0")
    await two.rights["n0"].stop()


@pytest.mark.parametrize("was_lost", [False, True])
async def test_a_lease_is_usable_once_that_of_the_node_is_renewed(tmp_path: Path, was_lost: bool) -> None:
    """After a loss the directory's lease is acquired again, too, if no other node has it."""
    two = Two(tmp_path)
    for right in two.rights.values():
        right.start()
    await two.rights["n0"].acquire(b"/d")
    records = two.records["n0"]
    records.lease_until_s = 0.0
    async with OwnedTasks() as tasks:
        waiting = tasks.start(two.rights["n0"].acquire(b"/d"))
        await pass_time(1.0)
        assert not waiting.done()
        if was_lost:
            await records.delete("rights//d")
            records.leases_lost += 1
        records.lease_until_s = float("inf")
        await waiting
    assert two.has("n0")
    await two.rights["n1"].acquire(b"/d")
    assert (two.has("n0"), two.has("n1")) == (False, True)
    for right in two.rights.values():
        await right.stop()


async def test_a_lease_acquired_while_that_of_the_node_was_lost_is_not_held(tmp_path: Path) -> None:
    """Another node acquires the directory meanwhile: two holders would both succeed in one O_EXCL."""
    two = Two(tmp_path)
    for right in two.rights.values():
        right.start()
    holders: list[list[str]] = []

    async def lose() -> None:
        await two.records["n0"].close()  # its records end with its lease
        two.records["n0"].leases_lost += 1
        await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
        await two.rights["n1"].acquire(b"/d")
        holders.append([id for id in two.rights if two.has(id)])

    two.on_look = lose
    await two.rights["n0"].acquire(b"/d")
    holders.append([id for id in two.rights if two.has(id)])
    assert holders == [["n1"], ["n0"]]
    for right in two.rights.values():
        await right.stop()


async def test_a_lease_acquired_while_those_of_a_lost_one_are_dropped_keeps_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its record another node would acquire the directory, too, and both would succeed in one O_EXCL."""
    two = Two(tmp_path)
    for right in two.rights.values():
        right.start()
    records = two.records["n0"]
    begun, go_on, delete = asyncio.Event(), asyncio.Event(), records.delete

    async def slow_delete(key: str, **conditions: Any) -> None:
        if not begun.is_set():
            begun.set()
            await go_on.wait()
        await delete(key, **conditions)

    await two.rights["n0"].acquire(b"/d")
    monkeypatch.setattr(records, "delete", slow_delete)
    records.leases_lost += 1
    await begun.wait()
    async with OwnedTasks() as tasks:
        acquired = tasks.start(two.rights["n0"].acquire(b"/d"))
        await pass_time(1.0)
        go_on.set()
        await acquired
    assert two.has("n0")
    await two.rights["n1"].acquire(b"/d")
    assert (two.has("n0"), two.has("n1")) == (False, True)
    for right in two.rights.values():
        await right.stop()


async def test_two_directories_are_acquired_at_once_after_a_lost_lease(tmp_path: Path) -> None:
    two = Two(tmp_path)
    two.uppers["n0"].at(b"/e").mkdir(0o755)
    rights, records = two.rights["n0"], two.records["n0"]
    rights.start()
    both = (b"/d", b"/e")
    await asyncio.gather(*map(rights.acquire, both))
    records.leases_lost += 1
    await asyncio.gather(*map(rights.acquire, both))
    await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
    assert await records.list("rights/") == {"rights//d": b"n0", "rights//e": b"n0"}
    assert all(rights.marks.is_leased(two.uppers["n0"].at(path), path) for path in both)
    await rights.stop()


async def test_a_release_while_the_lease_of_the_node_is_lost_leaves_the_record_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(tmp_path)
    two.rights["n0"].start()
    await two.rights["n0"].acquire(b"/d")

    async def lose(_: bytes) -> None:
        await two.records["n0"].close()  # its records end with its lease
        two.records["n0"].leases_lost += 1
        await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
        await two.records["n1"].put("rights//d", b"n1", leased=True)

    monkeypatch.setattr(two.rights["n0"], "_publish", lose)
    await two.rights["n0"].release(b"/d")
    assert await two.records["n1"].get("rights//d") == b"n1" and not two.has("n0")
    await two.rights["n0"].stop()


@pytest.mark.parametrize("was_held", [True, False])
async def test_the_record_of_another_node_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_held: bool
) -> None:
    """This node's lease is lost, and the other node acquires the directory, just before the record is deleted."""
    two = Two(tmp_path)
    for right in two.rights.values():
        right.start()
    records = two.records["n0"]
    delete = records.delete

    async def late_delete(key: str, **conditions: Any) -> None:
        await delete(key)
        records.leases_lost += 1
        await two.rights["n1"].acquire(b"/d")
        await delete(key, **conditions)

    await two.rights["n0"].acquire(b"/d")
    if not was_held:
        records.leases_lost += 1
        two.rights["n0"]._drop_lost()
    with monkeypatch.context() as patches:
        patches.setattr(records, "delete", late_delete)
        await two.rights["n0"].release(b"/d")
    assert await two.records["n1"].get("rights//d") == b"n1"
    assert (two.has("n0"), two.has("n1")) == (False, True)
    for right in two.rights.values():
        await right.stop()


async def test_a_doubted_lease_that_is_being_released_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Two(tmp_path)
    rights, records, upper = two.rights["n0"], two.records["n0"], two.uppers["n0"]
    upper.at(b"/e").mkdir(0o755)
    is_publishing, go_on = asyncio.Event(), asyncio.Event()

    async def slow_publish(_: bytes) -> None:
        is_publishing.set()
        await go_on.wait()

    def is_usable() -> bool:
        return rights.marks.is_leased(upper.at(b"/e"), b"/e")

    rights.start()
    await rights.acquire(b"/d")
    await rights.acquire(b"/e")
    monkeypatch.setattr(rights, "_publish", slow_publish)
    async with OwnedTasks() as tasks:
        released = tasks.start(rights.release(b"/d"))
        await is_publishing.wait()
        await two.records["n1"].put("rights//d", b"n1")
        records.lease_until_s = 0.0
        await until(lambda: not is_usable())
        records.lease_until_s = float("inf")
        await pass_time(2 * directory_lease.CHECK_INTERVAL_S)
        assert is_usable() and not released.done()
        go_on.set()
        await released
    assert await records.get("rights//d") == b"n1"
    await rights.stop()
