"""Nodes of a cluster keep within the budget of an origin together."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, OriginDeniedError, OriginUnavailableError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.node.origin_budgets import OriginBudgets, decode_rates
from headrace.node.space_policy import NodeCapacity
from headrace.origin.memory import MemoryOrigin
from headrace.origin.pace import OriginPace, OriginPaces
from headrace.origin.throttle import OriginLimits, ThrottleOrigin
from headrace.policy.current import CurrentPolicy
from headrace.policy.record import PolicyRecord, PolicyVersion
from headrace.testing.virtual_loop import pass_time

LIMIT = 100.0
POLICY = f'[origin."s3://b"]\nrequests_s = {LIMIT}\n'


class FlakyRecords(EmbeddedRecords):
    """Records whose store can go away."""

    is_away = False

    async def put(self, key: str, value: bytes, leased: bool = False) -> None:
        if self.is_away:
            raise ClusterUnavailableError("put", why="away")
        await super().put(key, value, leased)


class BudgetNode:
    """A node with one mount, whose calls wait as those of readers do."""

    def __init__(self, name: str, shared: Followers, members: int) -> None:
        self.policy, self.paces = CurrentPolicy(), OriginPaces()
        pace = self.pace = OriginPace("s3://b")
        self.paces.add(pace)
        memory = MemoryOrigin()
        memory.hold("f", b"x")
        self._origin = ThrottleOrigin(memory, OriginLimits(), pace)
        self.records = FlakyRecords(shared)
        capacity = NodeCapacity(1 << 30)
        capacity.members = members
        self.budgets = OriginBudgets(self.policy, self.paces, capacity, name, self.records)
        self.sent = 0
        self._callers: list[asyncio.Task[None]] = []
        joined = asyncio.Event()
        joined.set()
        self.policy.adopt(PolicyRecord([PolicyVersion(1, POLICY)]))
        self.budgets.start(joined)

    def call(self, readers: int) -> None:
        self._callers += [asyncio.ensure_future(self._calls()) for _ in range(readers)]

    async def _calls(self) -> None:
        while True:
            await self._origin.head("f", deadline=Deadline.never())
            self.sent += 1

    async def head(self, deadline: Deadline) -> None:
        await self._origin.head("f", deadline=deadline)

    async def rest(self) -> None:
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        self._callers.clear()

    async def close(self) -> None:
        await self.rest()
        await self.budgets.stop()


@pytest.fixture
async def nodes() -> AsyncIterator[list[BudgetNode]]:
    shared = Followers()
    nodes = [BudgetNode(f"n{number}", shared, 4) for number in range(4)]
    yield nodes
    for node in nodes:
        await node.close()


def sent(nodes: list[BudgetNode]) -> int:
    return sum(node.sent for node in nodes)


async def test_all_nodes_together_use_the_limit_and_no_more(nodes: list[BudgetNode]) -> None:
    for node, readers in zip(nodes, (1, 8, 8, 40), strict=True):
        node.call(readers)
    await pass_time(5.0)
    before = sent(nodes)
    await pass_time(20.0)
    assert 0.9 * 20 * LIMIT <= sent(nodes) - before <= 1.02 * 20 * LIMIT


async def test_what_resting_nodes_leave_is_used(nodes: list[BudgetNode]) -> None:
    for node in nodes:
        node.call(8)
    await pass_time(5.0)
    for node in nodes[1:]:
        await node.rest()
    await pass_time(5.0)
    before = nodes[0].sent
    await pass_time(10.0)
    assert nodes[0].sent - before >= 0.9 * 10 * LIMIT
    for node in nodes[1:]:
        node.call(8)
    await pass_time(5.0)
    before = sent(nodes)
    await pass_time(10.0)
    assert sent(nodes) - before <= 1.02 * 10 * LIMIT


async def test_a_burst_after_a_rest_waits_for_two_exchanges_only(nodes: list[BudgetNode]) -> None:
    await pass_time(10.0)
    assert float(str(nodes[0].budgets.status()[0]["requests_s"])) < 1.0
    nodes[0].call(64)
    await pass_time(2.0)
    assert nodes[0].sent >= 0.9 * 1.0 * LIMIT


async def test_a_burst_after_a_rest_keeps_its_deadline(nodes: list[BudgetNode]) -> None:
    await pass_time(10.0)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(nodes[0].head(Deadline.after(3.0)))


@pytest.mark.parametrize("rests", ["never", "before", "meanwhile"])
async def test_while_the_records_are_away_the_nodes_use_the_limit_and_no_more(
    nodes: list[BudgetNode], rests: str
) -> None:
    """rests: when the nodes make no calls: before the records go away, or for a while then. No node hears that others
    begin."""
    for node in () if rests == "before" else nodes:
        node.call(8)
    await pass_time(10.0)
    for node in nodes:
        node.records.is_away = True
    if rests != "never":
        for node in nodes:
            await node.rest()
        await pass_time(5.0)
        for node in nodes:
            node.call(8)
        await pass_time(5.0)
    before = sent(nodes)
    await pass_time(60.0)
    assert 0.9 * 60 * LIMIT <= sent(nodes) - before <= 1.02 * 60 * LIMIT
    for node in nodes:
        node.records.is_away = False
    for node in nodes[1:]:
        await node.rest()
    await pass_time(5.0)
    before = sent(nodes)
    await pass_time(20.0)
    assert 0.9 * 20 * LIMIT <= sent(nodes) - before <= 1.02 * 20 * LIMIT


async def test_records_that_go_away_before_the_first_exchange_leave_each_node_its_part(
    nodes: list[BudgetNode],
) -> None:
    """No node has heard of another: each took the whole limit for itself."""
    for node in nodes:
        node.records.is_away = True
        node.call(8)
    await pass_time(5.0)
    before = sent(nodes)
    await pass_time(60.0)
    assert 0.9 * 60 * LIMIT <= sent(nodes) - before <= 1.02 * 60 * LIMIT


@pytest.mark.expected_warnings("the origin is overloaded")
async def test_an_overloaded_origin_slows_all_nodes_at_once_and_they_recover(nodes: list[BudgetNode]) -> None:
    for node in nodes:
        node.call(8)
    await pass_time(5.0)
    for _ in range(3):  # of one overload
        nodes[0].pace.note_failure(OriginUnavailableError("s3://b/f", why="503 Slow Down"))
    await pass_time(0.1)
    before = sent(nodes)
    await pass_time(2.0)
    assert 0.35 * 2 * LIMIT <= sent(nodes) - before <= 0.6 * 2 * LIMIT
    assert all(float(str(node.budgets.status()[0]["factor"])) < 0.6 for node in nodes)
    await pass_time(30.0)
    before = sent(nodes)
    await pass_time(10.0)
    assert 0.9 * 10 * LIMIT <= sent(nodes) - before <= 1.02 * 10 * LIMIT
    assert all(node.budgets.status()[0]["factor"] == 1.0 for node in nodes)


async def test_other_failures_slow_nobody(nodes: list[BudgetNode]) -> None:
    nodes[0].pace.note_failure(OriginUnavailableError("s3://b/f", why="500 Internal Error"))
    nodes[0].pace.note_failure(OriginDeniedError("s3://b/f", why="403"))
    await pass_time(1.0)
    assert all(node.budgets.status()[0]["factor"] == 1.0 for node in nodes)


async def test_retries_take_from_the_budget(nodes: list[BudgetNode]) -> None:
    nodes[0].call(8)
    await pass_time(5.0)
    before = nodes[0].sent
    for _ in range(100):
        nodes[0].pace.note_failure(OriginUnavailableError("s3://b/f", why="500 Internal Error"))
        await pass_time(0.1)
    assert nodes[0].sent - before <= 1.02 * 10 * LIMIT - 100


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"rates": {"requests s3://b": {"demand": -1, "rate": 1}}}',
        b'{"rates": {"requests s3://b": {"demand": 1, "rate": 1e300}}}',
        b'{"rates": {"requests s3://b": {"demand": NaN, "rate": 1}}}',
        b'{"rates": {"requests s3://b": 3}}',
        b'{"rates": {"requests s3://b": {"demand": 1, "rate": 1, "factor": 0}}}',
        b'{"rates": {"requests s3://b": {"demand": 1, "rate": 1, "factor": 2}}}',
        b" " * (1 << 19),
    ],
)
def test_a_record_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_rates(raw)


@pytest.mark.parametrize("turns", range(5))
async def test_it_ends_while_it_is_woken(turns: int) -> None:
    node = BudgetNode("n", Followers(), members=1)
    await pass_time(0.1)
    node.budgets._wake.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await node.budgets.stop()
    assert not node.budgets._tasks


def adopt(nodes: list[BudgetNode], text: str) -> None:
    for node in nodes:
        node.policy.adopt(PolicyRecord([PolicyVersion(node.policy.record.number + 1, text)]))


@pytest.mark.parametrize("limits", [(LIMIT, LIMIT), (LIMIT, LIMIT * 1.01), (LIMIT, LIMIT * 0.99)])
async def test_changes_of_the_policy_give_no_burst(
    nodes: list[BudgetNode], limits: tuple[float, float]
) -> None:
    for node in nodes:
        node.call(20)
    await pass_time(5.0)
    before = sent(nodes)
    for number in range(100):
        adopt(nodes, f'[origin."s3://b"]\nrequests_s = {limits[number % 2]}\n# {number}\n')
        await pass_time(0.1)
    assert 0.9 * 10 * LIMIT <= sent(nodes) - before <= 1.03 * 10 * LIMIT


@pytest.mark.parametrize("phase_s", [0.0, 0.1, 0.2, 0.3, 0.4, 0.45])
async def test_a_node_keeps_its_part_of_a_limit_that_changes(nodes: list[BudgetNode], phase_s: float) -> None:
    """phase_s: an exchange may follow soon."""
    nodes[0].call(40)
    await pass_time(5.0 + phase_s)
    adopt(nodes, POLICY.replace(str(LIMIT), str(10 * LIMIT)))
    await pass_time(0.1)
    before = sent(nodes)
    await pass_time(0.4)
    assert sent(nodes) - before >= 0.8 * 0.4 * 10 * LIMIT, "it waits for no exchange"
    await pass_time(2.0)
    before = sent(nodes)
    await pass_time(10.0)
    assert 0.9 * 10 * 10 * LIMIT <= sent(nodes) - before <= 1.02 * 10 * 10 * LIMIT


@pytest.mark.parametrize("text", ["", '[origin."s3://b"]\nbytes_s = "1GB"\n'])
async def test_what_waits_goes_on_when_its_limit_is_gone(nodes: list[BudgetNode], text: str) -> None:
    adopt(nodes, '[origin."s3://b"]\nrequests_s = 0.01\n')
    calls = [asyncio.ensure_future(nodes[0].head(Deadline.never())) for _ in range(3)]
    await pass_time(1.0)
    assert not all(call.done() for call in calls)
    adopt(nodes, text)
    await pass_time(1.0)
    assert all(call.done() for call in calls)


@pytest.mark.expected_warnings("a budget of the policy is for no origin")
async def test_a_budget_that_needs_a_missing_package_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("fsspec", "fsspec.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    node = BudgetNode("n0", Followers(), 1)
    text = f'[origin."sftp://host/d"]\nrequests_s = 1\n{POLICY}'
    node.policy.adopt(PolicyRecord([PolicyVersion(2, text)]))
    assert [row["url"] for row in node.budgets.status()] == ["s3://b"]
    await node.close()
