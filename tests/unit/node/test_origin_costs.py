"""Nodes account for what they read from origins, and background work keeps to the budget of a month."""

from __future__ import annotations

import asyncio
import calendar
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import OriginBudgetSpentError
from headrace.base.kept_file import KeptFile
from headrace.base.priority import Priority
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.dataplane.read_queue import NO_TENANT, ReadClass
from headrace.namespace.mounts import Mount
from headrace.node.cluster_spending import GONE_AFTER_S, ClusterSpending
from headrace.node.origin_costs import JOBS_MAX, OTHER_JOBS, OriginCosts
from headrace.node.space_policy import NodeCapacity
from headrace.origin.memory import MemoryOrigin
from headrace.policy.current import CurrentPolicy
from headrace.policy.record import PolicyRecord, PolicyVersion
from headrace.policy.spending import BYTES_MAX, RECORD_BYTES_MAX, decode_departed, decode_spending
from headrace.testing.virtual_loop import pass_time

GIB = 1 << 30
POLICY = """
[tenant.vision]
paths = ["/data/vision/**"]
share = 3
[[rule]]
match = ["/data/low/**"]
priority = "low"
[origin."s3://b"]
egress_per_gib = 0.5
budget_month = 100
"""
PRICED = Mount("/data", "s3://b/prefix", MemoryOrigin(), 60.0)
FREE = Mount("/free", "s3://other", MemoryOrigin(), 60.0)
FILE = b"/data/vision/a"
MID_NOVEMBER_S = float(calendar.timegm((2026, 11, 16, 0, 0, 0)))


class CostNode:
    """A node of a cluster that only counts."""

    def __init__(
        self,
        name: str,
        folder: Path,
        shared: Followers,
        members: int = 2,
        records: EmbeddedRecords | None = None,
    ) -> None:
        self.now_s = MID_NOVEMBER_S
        self.members = ["n0", "n1"]
        self.policy = CurrentPolicy()
        capacity = NodeCapacity(GIB)
        capacity.members = members
        self.costs = OriginCosts(
            *(self.policy, capacity),
            KeptFile(str(folder / name), "costs.json", bytes_max=RECORD_BYTES_MAX),
            cluster=ClusterSpending(name, records or EmbeddedRecords(shared), lambda: self.members),
            wall_s=lambda: self.now_s,
        )
        self.set(POLICY)

    def set(self, text: str) -> None:
        number = self.policy.record.number + 1
        self.policy.adopt(PolicyRecord([PolicyVersion(number, text)]))

    async def start(self) -> None:
        joined = asyncio.Event()
        joined.set()
        await self.costs.start(joined)

    def read(self, gib: float, job: str = "programs", mount: Mount = PRICED, path: bytes = FILE) -> None:
        self.costs.charge(mount, path, int(gib * GIB), job)

    @property
    def status(self) -> dict[str, Any]:
        return self.costs.status()

    @property
    def background(self) -> str:
        return str(self.status["origins"]["s3://b"]["background"])


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[CostNode]]:
    shared = Followers()
    nodes = [CostNode(name, tmp_path, shared) for name in ("n0", "n1")]
    for node in nodes:
        await node.start()
    yield nodes
    for node in nodes:
        await node.costs.stop()


async def test_costs_are_told_by_mount_tenant_and_job(nodes: list[CostNode]) -> None:
    node = nodes[0]
    node.read(2, "train a")
    node.read(1, "load /data", path=b"/data/x")
    node.read(4, mount=FREE, path=b"/free/x")
    node.costs.note_opened(PRICED, "vision", 10 * GIB)
    status = node.status
    assert status["mounts"]["/data"] == {
        "requests": 2,
        "bytes": 3 * GIB,
        "cost": 1.5,
        "opened_bytes": 10 * GIB,
        "saved_bytes": 7 * GIB,
        "saved_cost": 3.5,
    }
    assert status["mounts"]["/free"]["cost"] == 0
    assert status["mounts"]["/free"]["bytes"] == 4 * GIB
    assert status["tenants"].keys() == {"vision"}
    assert status["tenants"]["vision"]["saved_cost"] == 4.0
    assert {name: row["cost"] for name, row in status["jobs"].items()} == {
        "train a": 1.0,
        "load /data": 0.5,
        "programs": 0.0,
    }


async def test_jobs_beyond_the_limit_share_an_account(nodes: list[CostNode]) -> None:
    for number in range(JOBS_MAX + 50):
        nodes[0].read(1, f"job {number}")
    jobs = nodes[0].status["jobs"]
    assert len(jobs) == JOBS_MAX + 1
    assert jobs[OTHER_JOBS]["requests"] == 50


async def test_names_of_jobs_fit_a_line_of_json(nodes: list[CostNode]) -> None:
    for name in ("load /\udcff\n", "x" * 5000, "load /\udcff\n"):
        nodes[0].read(1, name)
    jobs = nodes[0].status["jobs"]
    assert {name: row["requests"] for name, row in jobs.items()} == {"load /\\xff\\x0a": 2, "x" * 200: 1}
    assert msgspec.json.encode(nodes[0].status)


async def test_reads_are_classed_by_tenant_and_priority(nodes: list[CostNode]) -> None:
    costs = nodes[0].costs
    assert costs.class_of(b"/data/x") is NO_TENANT
    assert costs.class_of(FILE) == ReadClass("vision", 3.0, Priority.NORMAL)
    assert costs.class_of(b"/data/low/x") == ReadClass("", 1.0, Priority.LOW)
    nodes[0].set(POLICY.replace("share = 3", "share = 5"))
    assert costs.class_of(FILE).share == 5.0


@pytest.mark.expected_warnings("limited by budget_month")
async def test_all_nodes_keep_to_one_budget(nodes: list[CostNode]) -> None:
    nodes[0].read(85)
    nodes[1].read(74)
    await pass_time(11)
    assert [node.background for node in nodes] == ["free", "free"]
    nodes[1].read(2)
    await pass_time(11)
    assert [node.background for node in nodes] == ["slowed", "slowed"]
    assert nodes[0].status["origins"]["s3://b"]["cluster_cost"] == 80.5
    nodes[0].read(60)
    await pass_time(11)
    assert [node.background for node in nodes] == ["stopped", "stopped"]


@pytest.mark.expected_warnings("limited by budget_month")
async def test_background_work_is_slowed_to_what_lasts(nodes: list[CostNode]) -> None:
    node = nodes[0]
    node.read(199)
    await pass_time(6)
    began_s = asyncio.get_running_loop().time()
    rate = GIB / (15 * 86400) / 2  # 1 GiB for half a month, on two nodes
    for _ in range(5):
        await node.costs.admit(PRICED, 1 << 20, "load /data")
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5 * (1 << 20) / rate, rel=0.05)


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_spent_budget_stops_background_work_and_nothing_else(nodes: list[CostNode]) -> None:
    node = nodes[0]
    node.read(201)
    await pass_time(6)
    with pytest.raises(OriginBudgetSpentError, match="budget_month of the policy, 100, is spent"):
        await node.costs.admit(PRICED, 1, "load /data")
    for job in ("scrub", "peers"):
        await node.costs.admit(PRICED, 1, job)
    await node.costs.admit(FREE, 1, "load /free")
    node.set(POLICY.replace("100", "1000"))
    await node.costs.admit(PRICED, 1, "load /data")


@pytest.mark.expected_warnings("limited by budget_month")
async def test_the_next_month_begins_at_nothing(nodes: list[CostNode]) -> None:
    for node in nodes:
        node.read(150)
    await pass_time(11)
    assert nodes[0].background == "stopped"
    for node in nodes:
        node.now_s += 20 * 86400
    await pass_time(11)
    status = nodes[0].status
    assert (status["month"], nodes[0].background) == ("2026-12", "free")
    assert status["origins"]["s3://b"]["cluster_bytes"] == 0


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_node_that_starts_again_remembers_the_month(tmp_path: Path) -> None:
    shared = Followers()
    first = CostNode("n", tmp_path, shared, members=1)
    await first.start()
    first.read(170)
    await first.costs.stop()
    second = CostNode("n", tmp_path, shared, members=1)
    await second.start()
    assert (second.background, second.status["origins"]["s3://b"]["cost"]) == ("slowed", 85.0)
    await second.costs.stop()


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_node_that_stops_before_it_has_started_keeps_what_the_file_has(tmp_path: Path) -> None:
    nodes = [CostNode("n", tmp_path, Followers(), members=1) for _ in range(3)]
    await nodes[0].start()
    nodes[0].read(170)
    await nodes[0].costs.stop()
    nodes[1].read(1)  # such as for another node, while this one could not join the cluster
    await nodes[1].costs.stop()
    await nodes[2].start()
    assert nodes[2].status["origins"]["s3://b"]["cost"] == 85.0
    await nodes[2].costs.stop()


@pytest.mark.expected_warnings("can't be read", "invalid node=other")
async def test_a_damaged_file_and_a_damaged_record_count_as_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "costs.json").write_bytes(b"{")
    shared = Followers()
    shared.publish("costs/other", b'{"month": "2026-11", "bytes": {"s3://b": -5}}')
    node = CostNode("n", tmp_path, shared)
    await node.start()
    await pass_time(6)
    assert node.status["origins"]["s3://b"]["cluster_bytes"] == 0
    assert "can't be read" in caplog.text and "invalid node=other" in caplog.text
    await node.costs.stop()


async def admission(node: CostNode) -> asyncio.Task[None]:
    """Begin a load that has to wait for days."""
    task = asyncio.ensure_future(node.costs.admit(PRICED, 10 * GIB, "load /data"))
    await pass_time(30)
    assert not task.done()
    return task


@pytest.mark.expected_warnings("limited by budget_month")
async def test_what_waits_goes_on_when_the_budget_is_raised(nodes: list[CostNode]) -> None:
    nodes[0].read(195)
    await pass_time(6)
    task = await admission(nodes[0])
    nodes[0].set(POLICY.replace("budget_month = 100", "budget_month = 1000"))
    await pass_time(1)
    assert task.done()
    await task


@pytest.mark.expected_warnings("limited by budget_month")
async def test_what_waits_goes_on_without_a_price(nodes: list[CostNode]) -> None:
    nodes[0].read(195)
    await pass_time(6)
    task = await admission(nodes[0])
    nodes[0].set("")
    await pass_time(1)
    assert task.done()
    await task


@pytest.mark.expected_warnings("limited by budget_month")
async def test_what_waits_goes_on_in_the_next_month(nodes: list[CostNode]) -> None:
    nodes[0].read(195)
    await pass_time(6)
    task = await admission(nodes[0])
    nodes[0].now_s += 20 * 86400
    await pass_time(7)
    assert task.done()
    await task


@pytest.mark.expected_warnings("limited by budget_month")
async def test_what_waits_fails_when_the_budget_is_spent(nodes: list[CostNode]) -> None:
    nodes[0].read(195)
    await pass_time(6)
    task = await admission(nodes[0])
    nodes[0].read(10)
    await pass_time(7)
    with pytest.raises(OriginBudgetSpentError):
        await task


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_node_counts_alone_until_it_joins_its_cluster(tmp_path: Path) -> None:
    """The store of the records may be away when it starts."""
    node = CostNode("n", tmp_path, shared := Followers(), members=1)
    await node.costs.start(asyncio.Event())
    node.read(190)
    await pass_time(6)
    assert node.background == "slowed"
    assert b"s3://b" in (tmp_path / "n" / "costs.json").read_bytes()
    assert not shared.mirror
    await node.costs.stop()


async def test_a_clock_that_jumps_loses_no_month(nodes: list[CostNode]) -> None:
    nodes[0].read(10)
    nodes[0].now_s += 20 * 86400
    await pass_time(6)
    assert nodes[0].status["origins"]["s3://b"]["bytes"] == 0
    nodes[0].now_s -= 20 * 86400
    await pass_time(6)
    assert nodes[0].status["month"] == "2026-11"
    assert nodes[0].status["origins"]["s3://b"]["bytes"] == 10 * GIB


async def test_a_url_spelled_in_another_way_is_the_same_budget(nodes: list[CostNode]) -> None:
    nodes[0].read(10)
    nodes[0].set(POLICY.replace('"s3://b"', '"S3A://b/"'))
    nodes[0].read(5)
    nodes[1].read(1)
    await pass_time(11)
    status = nodes[0].status["origins"]["s3://b"]
    assert (status["bytes"], status["cluster_bytes"]) == (15 * GIB, 16 * GIB)


async def test_records_of_other_spellings_are_counted(tmp_path: Path) -> None:
    """An earlier release wrote URLs as the policy spells them."""
    (tmp_path / "n0").mkdir()
    (tmp_path / "n0" / "costs.json").write_bytes(b'{"month":"2026-11","bytes":{"s3://b/":100,"s3a://b":20}}')
    shared = Followers()
    shared.publish("costs/other", b'{"month":"2026-11","bytes":{"S3://b//":7}}')
    node = CostNode("n0", tmp_path, shared)
    await node.start()
    await pass_time(6)
    status = node.status["origins"]["s3://b"]
    assert (status["bytes"], status["cluster_bytes"]) == (120, 127)
    await node.costs.stop()


async def test_what_is_spent_without_a_price_meanwhile_is_remembered(tmp_path: Path) -> None:
    shared = Followers()
    node = CostNode("n0", tmp_path, shared)
    await node.start()
    node.read(10)
    node.set("")
    await pass_time(11)
    await node.costs.stop()
    again = CostNode("n0", tmp_path, shared)
    await again.start()
    assert again.status["origins"]["s3://b"]["bytes"] == 10 * GIB
    await again.costs.stop()


async def leave(nodes: list[CostNode], number: int) -> None:
    """Stop a node, and let it be gone for so long that it counts as such."""
    await nodes[number].costs.stop()
    for node in nodes:
        node.members = [f"n{other}" for other in range(len(nodes)) if other != number]
    await pass_time(GONE_AFTER_S + 15)


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_budget_holds_after_a_node_is_removed(tmp_path: Path) -> None:
    shared = Followers()
    nodes = [CostNode(name, tmp_path, shared) for name in ("n0", "n1")]
    for node in nodes:
        await node.start()
    nodes[1].read(150)
    nodes[0].read(20)
    await pass_time(6)
    await leave(nodes, 1)
    assert shared.mirror.keys() == {"costs/n0", "spent/departed"}
    assert nodes[0].background == "slowed"
    assert nodes[0].status["origins"]["s3://b"]["cluster_bytes"] == 170 * GIB
    late = CostNode("n2", tmp_path, shared)
    await late.start()
    await pass_time(6)
    assert late.status["origins"]["s3://b"]["cluster_bytes"] == 170 * GIB
    for node in (nodes[0], late):
        await node.costs.stop()


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_budget_holds_after_a_data_loss(tmp_path: Path) -> None:
    """The node that spent most of it reads nothing more."""
    shared = Followers()
    nodes = [CostNode(name, tmp_path, shared) for name in ("n0", "n1")]
    for node in nodes:
        await node.start()
    nodes[0].read(170)
    await pass_time(11)
    shared.publish("costs/n0", None)
    await pass_time(11)
    assert decode_spending(shared.mirror["costs/n0"]).bytes == {"s3://b": 170 * GIB}
    assert [node.background for node in nodes] == ["slowed", "slowed"]
    for node in nodes:
        await node.costs.stop()


@pytest.mark.parametrize("has_its_disk", [True, False])
@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_node_that_comes_back_counts_once(tmp_path: Path, *, has_its_disk: bool) -> None:
    shared = Followers()
    nodes = [CostNode(name, tmp_path, shared) for name in ("n0", "n1")]
    for node in nodes:
        await node.start()
    nodes[1].read(30)
    await pass_time(6)
    await leave(nodes, 1)
    if not has_its_disk:
        (tmp_path / "n1" / "costs.json").unlink()
    back = CostNode("n1", tmp_path, shared)
    await back.start()
    back.read(5)
    await pass_time(6)
    nodes[0].members = ["n0", "n1"]
    await pass_time(6)
    for node in (nodes[0], back):
        assert node.status["origins"]["s3://b"]["cluster_bytes"] == 35 * GIB
    await leave([nodes[0], back], 1)
    departed = decode_departed(shared.mirror["spent/departed"])
    assert departed.of_node("2026-11", "n1") == {"s3://b": 35 * GIB}
    assert nodes[0].status["origins"]["s3://b"]["cluster_bytes"] == 35 * GIB
    await nodes[0].costs.stop()


async def test_a_node_that_is_away_for_a_moment_keeps_its_record(nodes: list[CostNode]) -> None:
    nodes[1].read(1)
    await pass_time(6)
    nodes[0].members = ["n0"]
    await pass_time(GONE_AFTER_S - 10)
    nodes[0].members = ["n0", "n1"]
    await pass_time(20)
    nodes[0].members = ["n0"]
    await pass_time(GONE_AFTER_S - 10)
    assert nodes[0].status["origins"]["s3://b"]["cluster_bytes"] == GIB
    nodes[0].members = ["n0", "n1"]


async def test_records_of_gone_nodes_and_of_past_months_go(tmp_path: Path) -> None:
    shared = Followers()
    for number in range(40):
        month = 8 + number % 4
        shared.publish(f"costs/old{number}", f'{{"month":"2026-{month:02}","bytes":{{"s3://b":1}}}}'.encode())
    node = CostNode("n0", tmp_path, shared)
    node.members = ["n0"]
    await node.start()
    await pass_time(GONE_AFTER_S + 30)
    assert list(shared.mirror) == ["spent/departed"]
    departed = decode_departed(shared.mirror["spent/departed"])
    assert list(departed.months) == ["2026-09", "2026-10", "2026-11"]
    assert node.status["origins"]["s3://b"]["cluster_bytes"] == 10
    await node.costs.stop()


@pytest.mark.expected_warnings("spending record of departed nodes is invalid")
async def test_a_damaged_record_of_departed_nodes_is_replaced(tmp_path: Path) -> None:
    shared = Followers()
    shared.publish("spent/departed", b'{"months": {"x": {}}}')
    shared.publish("costs/old", b'{"month":"2026-11","bytes":{"s3://b":3}}')
    node = CostNode("n0", tmp_path, shared)
    node.members = ["n0"]
    await node.start()
    await pass_time(GONE_AFTER_S + 30)
    assert node.status["origins"]["s3://b"]["cluster_bytes"] == 3
    await node.costs.stop()


@pytest.mark.expected_warnings("a spending record is of no node")
async def test_a_record_with_a_name_of_no_node_loses_nothing_of_the_others(tmp_path: Path) -> None:
    """Such a name would make the record of all departed nodes one that nobody can read."""
    shared = Followers()
    for name in ("old", "x" * 301):
        shared.publish(f"costs/{name}", b'{"month":"2026-11","bytes":{"s3://b":3}}')
    node = CostNode("n0", tmp_path, shared)
    node.members = ["n0"]
    await node.start()
    await pass_time(GONE_AFTER_S + 30)
    assert decode_departed(shared.mirror["spent/departed"]).of_node("2026-11", "old") == {"s3://b": 3}
    await node.costs.stop()


@pytest.mark.expected_warnings("limited by budget_month")
async def test_a_record_of_this_node_with_two_large_spellings_is_no_more_than_a_record_may_have(
    tmp_path: Path,
) -> None:
    shared = Followers()
    amounts = f'"s3://b": {BYTES_MAX}, "s3://b/": {BYTES_MAX}'
    shared.publish("costs/n0", f'{{"month":"2026-11","bytes":{{{amounts}}}}}'.encode())
    node = CostNode("n0", tmp_path, shared)
    await node.start()
    node.read(1)
    await pass_time(12)
    assert decode_spending(shared.mirror["costs/n0"]).bytes == {"s3://b": BYTES_MAX}
    await node.costs.stop()
    assert decode_spending((tmp_path / "n0" / "costs.json").read_bytes()).bytes == {"s3://b": BYTES_MAX}


async def test_prices_and_records_that_need_a_missing_package_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fsspec", "fsspec.registry"):
        monkeypatch.setitem(sys.modules, name, None)
    shared = Followers()
    node = CostNode("n0", tmp_path, shared)
    node.set(f'[origin."sftp://host/d"]\negress_per_gib = 1\n{POLICY}')
    await node.start()
    await pass_time(1)
    shared.publish("costs/n1", b'{"month":"2026-11","bytes":{"sftp://host/d":7,"s3://b":3}}')
    assert {url: row["cluster_bytes"] for url, row in node.status["origins"].items()} == {"s3://b": 3}
    await node.costs.stop()


class RecordsOfTwo(EmbeddedRecords):
    """Another node keeps the records of gone nodes at the same time."""

    async def get(self, key: str) -> bytes | None:
        value = await super().get(key)
        if key == "spent/departed" and "costs/old1" in self.shared.mirror:
            for number in (1, 2):
                self.shared.publish(f"costs/old{number}", None)
        return value


async def test_a_node_continues_when_another_keeps_the_records_of_gone_nodes(tmp_path: Path) -> None:
    shared = Followers()
    for number in range(4):
        shared.publish(f"costs/old{number}", b'{"month":"2026-11","bytes":{"s3://b":1}}')
    node = CostNode("n0", tmp_path, shared, records=RecordsOfTwo(shared))
    node.members = ["n0"]
    await node.start()
    await pass_time(GONE_AFTER_S + 30)
    assert list(shared.mirror) == ["spent/departed"]
    departed = decode_departed(shared.mirror["spent/departed"])
    assert all(departed.of_node("2026-11", f"old{number}") for number in (0, 3))
    node.read(1)
    await pass_time(30)
    assert decode_spending(shared.mirror["costs/n0"]).bytes == {"s3://b": GIB}
    await node.costs.stop()
