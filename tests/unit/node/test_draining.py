"""A node is drained only where another one takes over, and a command that can't end says so."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headrace.base.errors import UsageError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.membership import Membership
from headrace.node.draining import drain
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.wire.messages import JobState


class NothingToHandOver:
    running = False

    def state(self, *, done: bool) -> JobState:
        return JobState(done, 0, 0, 0, 0, 0, [], False)


def info(id: str, *, draining: bool = False) -> NodeInfo:
    return NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", 1 << 30, "0", 1, draining)


async def cluster_of(*others: NodeInfo) -> tuple[EmbeddedRecords, Membership]:
    """Return the records of a cluster, and the membership of its node "me"."""

    async def is_alive(_: NodeInfo) -> bool:
        return True

    records = EmbeddedRecords()
    records.start = lambda: asyncio.sleep(0)  # type: ignore[attr-defined]
    member = Membership(records, info("me"), on_view=lambda _: None, is_alive=is_alive)  # type: ignore[arg-type]
    for other in others:
        await put(records, other)
    await member.start()
    await pass_time(1)
    return records, member


async def put(records: EmbeddedRecords, other: NodeInfo) -> None:
    await records.put(f"nodes/{other.id}", msgspec.json.encode(other))


async def drained(member: Membership) -> bool:
    async with asyncio.timeout(60):
        states = [state async for state in drain("me", member, NothingToHandOver())]
    return states[-1].done


async def test_a_node_is_drained_where_another_takes_over() -> None:
    _, member = await cluster_of(info("a"), info("b", draining=True))
    assert await drained(member)
    assert [owner.id for owner in member.current_view().ring.members] == ["a"]
    assert await drained(member)  # the command is repeated
    await member.stop()


@pytest.mark.parametrize("others", [[], [info("a", draining=True)]])
async def test_a_node_is_not_drained_where_none_takes_over(others: list[NodeInfo]) -> None:
    records, member = await cluster_of(*others)
    with pytest.raises(UsageError, match="no other node"):
        await drained(member)
    assert b'"draining":true' not in records.shared.mirror["nodes/me"]
    await member.stop()


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_drain_ends_when_the_last_other_node_goes_meanwhile(*, leaves: bool) -> None:
    """It leaves, or is drained at the same time."""
    records, member = await cluster_of(info("a"))
    async with OwnedTasks(Exception) as tasks:
        draining = tasks.start(drained(member))
        await asyncio.sleep(0)
        if leaves:
            await records.delete("nodes/a")
        else:
            await put(records, info("a", draining=True))
        with pytest.raises(UsageError, match="no other node"):
            await draining
    await member.stop()
