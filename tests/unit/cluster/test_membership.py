"""All nodes come to one view of the members, whatever fails or is slow meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.availability import EtcdAvailability
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.membership import Membership, _view_of
from headrace.cluster.records import Followers
from headrace.ring.view import ClusterView, NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until


class FlakyRecords(EmbeddedRecords):
    """fails: calls of `put` fail, before or after the record is written."""

    fails = ""
    availability = EtcdAvailability()

    async def start(self) -> None:
        pass

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        if self.fails != "before":
            await super().put(key, value, leased)
        if self.fails:
            raise ClusterUnavailableError("etcd", why="it does not answer")


class NodeOfCluster:
    def __init__(
        self, shared: Followers, id: str, on_view: Callable[[ClusterView], None] = lambda _: None
    ) -> None:
        async def is_alive(_: NodeInfo) -> bool:
            return True

        self.records = FlakyRecords(shared)
        info = NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", 1 << 30, "0", 1)
        self.membership = Membership(self.records, info, on_view=on_view, is_alive=is_alive)  # type: ignore[arg-type]

    @property
    def owners(self) -> list[str]:
        return [member.id for member in self.membership.current_view().ring.members]

    @property
    def is_draining(self) -> bool:
        return bool(self.membership.status()["draining"])


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_nodes_agree_on_the_owners_after_a_drain_that_failed(fails: str) -> None:
    shared = Followers()
    first, second = nodes = [NodeOfCluster(shared, id) for id in ("a", "b")]
    for node in nodes:
        await node.membership.start()
    await pass_time(1)
    second.records.fails = fails
    with pytest.raises(ClusterUnavailableError):
        await second.membership.drain()
    third = NodeInfo("c", "run-c", "127.0.0.1:1", "", 1 << 30, "0", 1)
    await first.records.put("nodes/c", msgspec.json.encode(third))  # the next change makes a new view
    await pass_time(1)
    assert first.owners == second.owners == (["a", "b", "c"] if fails == "before" else ["a", "c"])
    assert second.is_draining == (fails == "after")
    second.records.fails = ""
    await second.membership.drain()
    await pass_time(1)
    assert first.owners == second.owners == ["a", "c"]
    for node in nodes:
        await node.membership.stop()


@pytest.mark.expected_warnings("headrace.cluster.membership")
async def test_a_view_that_was_not_completely_adopted_is_adopted_later() -> None:
    """A disk that fails for a moment must not keep a node from the failover of another one that left."""
    views: list[list[str]] = []

    def adopt(view: ClusterView) -> None:
        views.append(sorted(view.nodes))
        if 1 < len(views) < 4:
            raise OSError("the test says so")

    member = NodeOfCluster(Followers(), "a", adopt)
    await member.membership.start()
    second = NodeInfo("b", "run-b", "127.0.0.1:1", "", 1 << 30, "0", 1)
    await member.records.put("nodes/b", msgspec.json.encode(second))
    await until(lambda: len(views) == 4)
    await pass_time(60)
    assert views == [["a"], *[["a", "b"]] * 3]
    assert member.membership.current_view().epoch == 2
    await member.membership.stop()


async def test_an_earlier_view_that_takes_longer_does_not_replace_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two are computed at once where a node joins late, and others join or leave."""
    later_is_done = threading.Event()

    def slow_first(nodes: dict[str, NodeInfo], *args: Any, **rest: Any) -> ClusterView:
        if "b" not in nodes:
            later_is_done.wait(1.0)  # in vain where the later one waits for this one
        return _view_of(nodes, *args, **rest)

    member = NodeOfCluster(Followers(), "a")
    monkeypatch.setattr("headrace.cluster.membership._view_of", slow_first)
    second = NodeInfo("b", "run-b", "127.0.0.1:1", "", 1 << 30, "0", 1)
    async with OwnedTasks() as tasks:
        first = tasks.start(member.membership._make_view())
        await asyncio.sleep(0)
        member.membership._on_record("nodes/b", msgspec.json.encode(second))
        await member.membership._make_view()
        later_is_done.set()
        await first
    assert member.owners == ["a", "b"]
