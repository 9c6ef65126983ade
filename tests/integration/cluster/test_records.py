"""One suite for both kinds of records; what only etcd can do to them, after it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aetcd
import pytest

from headrace.base.errors import ClusterUnavailableError, NodeIdTakenError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.membership import Membership
from headrace.cluster.records import Followers
from headrace.ring.view import ClusterView, NodeInfo
from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.uvloop]
KINDS = ["embedded", "etcd"]
AnyRecords = EmbeddedRecords | EtcdRecords
Make = Callable[[], Awaitable[AnyRecords]]


@contextlib.asynccontextmanager
async def maker(kind: str, etcd: EtcdServer, prefix: str) -> AsyncIterator[Make]:
    """Makes records of one cluster, each as another node has them."""
    shared, clients = Followers(), []

    async def make() -> AnyRecords:
        records: AnyRecords
        if kind == "embedded":
            records = EmbeddedRecords(shared)
        else:
            records = EtcdRecords([etcd.address], prefix=f"/test/{prefix}/", lease_s=2)
            await records.start()
        clients.append(records)
        return records

    try:
        yield make
    finally:
        for records in clients:
            await records.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_stays_where_another_one_exists(kind: str, etcd: EtcdServer) -> None:
    async with maker(kind, etcd, f"unless-{kind}") as make:
        first, second = await make(), await make()
        await first.put("written/a", b"1")
        await first.put("nodes/a", b"here", leased=True)
        await second.delete("written/a", unless="nodes/a")
        assert await first.get("written/a") == b"1"
        await first.delete("nodes/a")
        await second.delete("written/a", unless="nodes/a")
        await second.delete("written/a", unless="nodes/a")
        assert await first.get("written/a") is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_record_stays_where_it_has_another_value(kind: str, etcd: EtcdServer) -> None:
    async with maker(kind, etcd, f"only-{kind}") as make:
        first, second = await make(), await make()
        await first.put("rights/d", b"n1", leased=True)
        await second.delete("rights/d", only=b"n0")
        assert await first.get("rights/d") == b"n1"
        await first.put("nodes/a", b"here", leased=True)
        await first.delete("rights/d", only=b"n1", unless="nodes/a")
        assert await first.get("rights/d") == b"n1"
        await first.delete("rights/d", only=b"n1")
        await first.delete("rights/d", only=b"n1")
        assert await second.get("rights/d") is None


@pytest.mark.parametrize("kind", KINDS)
async def test_records(kind: str, etcd: EtcdServer) -> None:
    async with maker(kind, etcd, "records") as make:
        records, other = await make(), await make()
        assert await records.get("a/x") is None
        await records.put("a/x", b"1")
        assert await other.get("a/x") == b"1"
        assert not await other.create("a/x", b"2")
        assert await other.create("a/y", b"\x00\xff")
        assert await records.list("a/") == {"a/x": b"1", "a/y": b"\x00\xff"}
        assert not await records.replace("a/x", b"no", b"3")
        assert await records.replace("a/x", b"1", b"3")
        assert not await records.replace("a/none", b"", b"3")
        heard: list[tuple[str, bytes | None]] = []
        await other.follow("a/", lambda key, value: heard.append((key, value)))
        await until(lambda: dict(heard) == {"a/x": b"3", "a/y": b"\x00\xff"})
        await records.put("b/z", b"not followed")
        await records.delete("a/y")
        await records.delete("a/y")
        await records.put("a/w", b"new")
        await until(lambda: ("a/w", b"new") in heard)
        assert heard.index(("a/y", None)) < heard.index(("a/w", b"new"))
        assert "b/z" not in dict(heard)


@pytest.mark.parametrize("kind", KINDS)
async def test_leased_records_go_with_their_node(kind: str, etcd: EtcdServer) -> None:
    async with maker(kind, etcd, "leases") as make:
        records, other = await make(), await make()
        await records.put("mine", b"1", leased=True)
        await records.put("stays", b"2")
        gone: list[str] = []
        await other.follow("", lambda key, value: gone.append(key) if value is None else None)
        await records.close()
        await until(lambda: gone == ["mine"])
        assert await other.get("stays") == b"2"


@pytest.mark.expected_warnings("this node's record was deleted")
async def test_a_lease_that_was_revoked_is_loud_and_mended(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with maker("etcd", etcd, "revoked") as make:
        records, other = await make(), await make()
        assert isinstance(records, EtcdRecords)
        await records.put("mine", b"1", leased=True)
        values: list[bytes | None] = []
        await other.follow("mine", lambda _, value: values.append(value))
        await until(lambda: values == [b"1"])
        lease = records._lease._lease
        await records._connection.call(lambda client: client.revoke_lease(lease))
        await until(lambda: values[:3] == [b"1", None, b"1"])
    assert any(record.levelname == "ERROR" for record in caplog.records)


def count_requests(monkeypatch: pytest.MonkeyPatch, *, lost: int) -> list[int]:
    """Let etcd execute the next transactions of a node, and lose so many answers. Return a list that gets the number of
    each request."""
    monkeypatch.undo()
    transaction, requests = aetcd.Client.transaction, list[int]()

    async def counted(client: Any, *args: Any, **parts: Any) -> Any:
        requests.append(len(requests))
        answer = await transaction(client, *args, **parts)
        if requests[-1] < lost:
            raise ConnectionError("the answer was lost by plan")
        return answer

    monkeypatch.setattr(aetcd.Client, "transaction", counted)
    return requests


def lose_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    count_requests(monkeypatch, lost=1)


async def created_by_one_request(records: EtcdRecords, monkeypatch: pytest.MonkeyPatch, key: str) -> bool:
    """Return what a node gets whose request was not sent again, as it is when its connection was just closed."""
    while True:
        requests = count_requests(monkeypatch, lost=0)
        is_created = await records.create(key, b"me", leased=True)
        if len(requests) == 1:
            return is_created


async def test_a_write_whose_answer_was_lost_is_known_as_this_nodes_own(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim or a lease would otherwise seem to be another node's."""
    records = EtcdRecords([etcd.address] * 2, prefix="/test/lost-answers/", lease_s=2)
    await records.start()
    try:
        lose_next_answer(monkeypatch)
        assert await records.create("rights/d", b"me", leased=True)
        assert not await created_by_one_request(records, monkeypatch, "rights/d")
        assert "rights/d" in records._leased
        lose_next_answer(monkeypatch)
        assert await records.replace("rights/d", b"me", b"me again")
        assert await records.get("rights/d") == b"me again"
        lose_next_answer(monkeypatch)
        assert not await records.replace("rights/d", b"me", b"once more")
        lose_next_answer(monkeypatch)
        assert not await records.create("rights/d", b"of another one", leased=True)
        assert await records.get("rights/d") == b"me again"
    finally:
        await records.close()


async def test_a_lease_is_kept_while_the_loop_is_busy(etcd: EtcdServer) -> None:
    """A node that was busy with thousands of connections lost its lease, and was out of the cluster."""
    async with maker("etcd", etcd, "busy") as make:
        records = await make()
        assert isinstance(records, EtcdRecords)
        await records.put("mine", b"1", leased=True)
        lease, until_s = records._lease._lease, records.lease_until_s
        time.sleep(3.2)  # noqa: ASYNC251 - more than the lease, and what etcd adds to it
        assert records.lease_until_s > until_s
        assert await records.get("mine") == b"1"
        left = await records._connection.call(lambda client: client.refresh_lease(lease))
        assert left.TTL > 0 and records.leases_lost == 0 and records._lease._lease == lease


@pytest.mark.expected_warnings("this node's record was deleted")
async def test_a_lease_ends_where_the_loop_hangs(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.lease.LOOP_SILENT_S", 0.0)
    async with maker("etcd", etcd, "hangs") as make:
        records, other = await make(), await make()
        assert isinstance(records, EtcdRecords) and isinstance(other, EtcdRecords)
        gone: list[bytes | None] = []
        await other.follow("mine", lambda _, value: gone.append(value))
        await records.put("mine", b"1", leased=True)
        await until(lambda: gone[:2] == [b"1", None])


@pytest.mark.expected_warnings(
    "etcd refuses to write records",
    "etcd writes records again",
    "the lease was lost",
    "etcd is unavailable",
    "etcd is available again",
)
async def test_a_full_database_is_told_from_one_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """Each failed write dropped the connection, and status said nothing. A lost lease filled the log."""
    with etcd_server() as own:
        async with maker("etcd", own, "full") as make:
            records = await make()
            assert isinstance(records, EtcdRecords)
            await records.put("a", b"1")
            await records.put("b", b"1")
            await records.put("mine", b"here", leased=True)
            host, _, port = own.address.rpartition(":")
            operator, client = aetcd.Client(host, int(port)), records._connection.client()
            await operator.create_alarm()
            for _ in range(3):
                with pytest.raises(ClusterUnavailableError, match="database space exceeded") as caught:
                    await records.put("a", b"2")
            assert "docs/failures/etcd.md" in caught.value.hint
            assert await records.get("a") == b"1"
            await records.delete("b")  # a full database deletes
            assert records._connection.client() is client
            assert "full" in records.availability.trouble()
            await operator.revoke_lease(records._lease._lease)
            await until(lambda: "unavailable" in records.availability.trouble())
            assert "space exceeded" in records.availability.trouble()
            await asyncio.sleep(1)  # it tries three times to write its records
            await operator.disarm_alarm()
            await operator.close()
            await until(lambda: not records.availability.trouble())
            assert await records.get("mine") == b"here"
            await records.put("a", b"3")
    for text in ("refuses to write", "writes records again", "is unavailable", "available again"):
        assert caplog.text.count(text) == 1, text


@pytest.mark.expected_warnings("etcd is unavailable")
async def test_calls_end_when_etcd_is_not_there() -> None:
    records = EtcdRecords(["127.0.0.1:1"], prefix="/x/", lease_s=2)
    with pytest.raises(ClusterUnavailableError):
        await records.get("a")
    with pytest.raises(ClusterUnavailableError):
        await records.start()
    await records.close()


class Node:
    """A membership whose life the test decides on."""

    def __init__(self, records: AnyRecords, id: str, instance: str, alive: set[str]) -> None:
        assert isinstance(records, EtcdRecords)
        self.views: list[ClusterView] = []
        info = NodeInfo(id, instance, f"{instance}:1", "", 1 << 30, "0", 1)

        async def is_alive(other: NodeInfo) -> bool:
            return other.instance in alive

        self.membership = Membership(records, info, on_view=self.views.append, is_alive=is_alive)

    def ids(self) -> set[str]:
        view = self.membership.view
        return set() if view is None else set(view.nodes)


@contextlib.asynccontextmanager
async def joining() -> AsyncIterator[Callable[[Node], Awaitable[None]]]:
    """Start nodes, and stop them at the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def join(node: Node) -> None:
            await node.membership.start()
            stack.push_async_callback(node.membership.stop)

        yield join


async def test_all_nodes_see_the_same_members_and_owners(etcd: EtcdServer) -> None:
    async with maker("etcd", etcd, "members") as make, joining() as join:
        nodes = [Node(await make(), f"n{number}", f"i{number}", set()) for number in range(5)]
        for node in nodes:
            await join(node)
        await until(lambda: all(len(node.ids()) == 5 for node in nodes))
        for path in (b"/%d" % number for number in range(50)):
            owners = {node.membership.view.owners(path)[0].id for node in nodes if node.membership.view}
            assert len(owners) == 1
        await nodes[4].membership.drain()
        await until(
            lambda: all(len(node.membership.view.ring.members) == 4 for node in nodes if node.membership.view)
        )
        assert all(len(node.ids()) == 5 for node in nodes)
        await nodes[4].membership.stop()
        await until(lambda: all(len(node.ids()) == 4 for node in nodes[:4]))
        epochs = [view.epoch for view in nodes[0].views]
        assert epochs == sorted(set(epochs))


@pytest.mark.expected_warnings("the node did not completely adopt a new view")
async def test_members_are_followed_although_a_view_was_not_taken(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with maker("etcd", etcd, "stumbles") as make, joining() as join:
        first = Node(await make(), "n1", "i1", set())
        sizes: list[int] = []

        def stumble(view: ClusterView) -> None:
            sizes.append(len(view.nodes))
            if len(view.nodes) == 2:
                raise RuntimeError("this one is too much")

        first.membership._on_view = stumble
        await join(first)
        for number, count in ((2, 2), (3, 3)):
            await join(Node(await make(), f"n{number}", f"i{number}", set()))
            await until(lambda: sizes[-1] == count, limit_s=60)  # noqa: B023 - ends within its turn
        assert first.ids() == {"n1", "n2", "n3"}
        await first.membership.stop()
    assert "this one is too much" in caplog.text


@pytest.mark.expected_warnings("another node has this node's id")
async def test_one_id_has_one_node(etcd: EtcdServer) -> None:
    async with maker("etcd", etcd, "twins") as make, joining() as join:
        alive = {"first"}
        first = Node(await make(), "n", "first", alive)
        await join(first)
        twin = Node(await make(), "n", "second", alive)
        with pytest.raises(NodeIdTakenError, match="first:1"):
            await join(twin)
        alive.clear()  # it hangs, say: nobody can tell that from its death
        third = Node(await make(), "n", "third", alive)
        await join(third)
        await until(lambda: "another node took" in str(first.membership.status()["trouble"]))
        records = await make()
        for _ in range(30):  # and stays: the first one does not fight for it
            raw = await records.get("nodes/n")
            assert raw is not None and b"third" in raw
            await asyncio.sleep(0.05)  # long enough for a fight that must not begin
        assert not third.membership.status()["trouble"]
