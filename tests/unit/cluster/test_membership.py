"""A node that could not record that it drains does not leave its own ring alone."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.membership import Membership
from headrace.cluster.records import Followers
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time


class FlakyRecords(EmbeddedRecords):
    """fails: calls of `put` fail, before or after the record is written."""

    fails = ""
    away_since_s = None

    async def start(self) -> None:
        pass

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        if self.fails != "before":
            await super().put(key, value, leased)
        if self.fails:
            raise ClusterUnavailableError("etcd", why="it does not answer")


class NodeOfCluster:
    def __init__(self, shared: Followers, id: str) -> None:
        async def is_alive(_: NodeInfo) -> bool:
            return True

        self.records = FlakyRecords(shared)
        info = NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", 1 << 30, "0", 1)
        self.membership = Membership(self.records, info, on_view=lambda _: None, is_alive=is_alive)  # type: ignore[arg-type]

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
