"""A node is drained only where another one takes over, and a command that can't end says so."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headrace.base.errors import HeadraceError, NodeIdTakenError, UsageError
from headrace.base.tasks import OwnedTasks
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.membership import Membership
from headrace.node.draining import drain
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.wire.messages import JobState


class NothingToHandOver:
    running = broke_off = False

    def check_all(self) -> None:
        raise AssertionError("the handover did not break off")

    def state(self, *, done: bool) -> JobState:
        return JobState(done, 0, 0, 0, 0, 0, [], False)


def info(id: str, *, draining: bool = False) -> NodeInfo:
    return NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", 1 << 30, "0", 1, draining)


async def member_of(records: EmbeddedRecords, own: NodeInfo) -> Membership:
    async def is_alive(_: NodeInfo) -> bool:
        return True

    records.start = lambda: asyncio.sleep(0)  # type: ignore[attr-defined]
    member = Membership(records, own, on_view=lambda _: None, is_alive=is_alive)  # type: ignore[arg-type]
    await member.start()
    await pass_time(1)
    return member


async def cluster_of(*others: NodeInfo) -> tuple[EmbeddedRecords, Membership]:
    """Return the records of a cluster, and the membership of its node "me"."""
    records = EmbeddedRecords()
    for other in others:
        await put(records, other)
    return records, await member_of(records, info("me"))


async def put(records: EmbeddedRecords, other: NodeInfo) -> None:
    await records.put(f"nodes/{other.id}", msgspec.json.encode(other))


async def drained(member: Membership, id: str = "me", handover: NothingToHandOver | None = None) -> bool:
    async with asyncio.timeout(60):
        states = [state async for state in drain(id, member, handover or NothingToHandOver())]
    return states[-1].done


def draining(records: EmbeddedRecords) -> list[str]:
    """Return the keys of the records of nodes that are drained, as all nodes see them."""
    return [key for key, value in records.shared.mirror.items() if b'"draining":true' in value]


async def test_a_node_is_drained_where_another_takes_over() -> None:
    _, member = await cluster_of(info("a"), info("b", draining=True))
    assert await drained(member)
    assert [owner.id for owner in member.current_view().ring.members] == ["a"]
    assert await drained(member)  # the command is repeated
    await member.stop()


class BrokenHandover(NothingToHandOver):
    """Breaks off some times, and then succeeds."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.broke_off = True

    def check_all(self) -> None:
        self.broke_off = self.failures > 0
        self.failures -= 1


async def test_a_handover_that_broke_off_is_no_success_and_another_drain_begins_it_anew() -> None:
    _, member = await cluster_of(info("a"))
    handover = BrokenHandover(failures=1)
    with pytest.raises(HeadraceError, match="broke off"):
        await drained(member, handover=handover)
    assert await drained(member, handover=handover)
    await member.stop()


@pytest.mark.parametrize("others", [[], [info("a", draining=True)]])
async def test_a_node_is_not_drained_where_none_takes_over(others: list[NodeInfo]) -> None:
    records, member = await cluster_of(*others)
    with pytest.raises(UsageError, match="no other node"):
        await drained(member)
    assert "nodes/me" not in draining(records)
    await member.stop()


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("hands_over", [False, True])
async def test_a_drain_ends_when_the_last_other_node_goes_meanwhile(
    *, leaves: bool, hands_over: bool
) -> None:
    """It leaves, or is drained at the same time: before this node begins to hand files over, or while it does. This
    node takes part again."""
    records, member = await cluster_of(info("a"))
    handover = NothingToHandOver()
    handover.running = hands_over
    async with OwnedTasks(Exception) as tasks:
        work = tasks.start(drained(member, handover=handover))
        await pass_time(1 if hands_over else 0)
        if leaves:
            await records.delete("nodes/a")
        else:
            await put(records, info("a", draining=True))
        await pass_time(1)
        handover.running = False
        with pytest.raises(UsageError, match="no other node"):
            await work
    await pass_time(1)
    assert "nodes/me" not in draining(records)
    assert not member.current_view().nodes["me"].draining
    await member.stop()


async def test_of_two_nodes_that_are_drained_at_the_same_time_one_stays_or_both() -> None:
    first = EmbeddedRecords()
    members = [
        await member_of(first, info("a")),
        await member_of(EmbeddedRecords(first.shared), info("b")),
    ]
    works = [drained(member, id) for member, id in zip(members, "ab", strict=True)]
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    stay = [id for id, outcome in zip("ab", outcomes, strict=True) if isinstance(outcome, UsageError)]
    assert stay
    await pass_time(1)
    assert draining(first) == [f"nodes/{id}" for id in "ab" if id not in stay]
    for member in members:
        assert [owner.id for owner in member.current_view().ring.members] == stay
        await member.stop()


@pytest.mark.expected_warnings("another node has this node's id")
async def test_a_node_whose_id_another_one_took_does_not_touch_its_record() -> None:
    """It was paused for longer than its lease."""
    records, member = await cluster_of(info("a"))
    other = msgspec.structs.replace(info("me"), instance="another run")
    await put(records, other)
    await pass_time(1)
    with pytest.raises(NodeIdTakenError, match="another node took the id"):
        await drained(member)
    assert records.shared.mirror["nodes/me"] == msgspec.json.encode(other)
    await member.stop()
