"""Several set the policy at the same time: each change is in force afterwards, or is refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headrace.base.errors import ClusterUnavailableError, PolicyConflictError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.node.policies import FILE, KEY, Policies, PolicyFile
from headrace.node.space_policy import NodeCapacity
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import parse_policy
from headrace.policy.record import VERSIONS_KEPT_MAX, PolicyRecord, decode_record, encode_record
from headrace.policy.rule_text import with_rule
from headrace.testing.virtual_loop import pass_time

AT_ONCE = 8


class FlakyRecords(EmbeddedRecords):
    """failures: calls that fail. writes: those that changed a record."""

    failures = 0
    writes = 0

    async def get(self, key: str) -> bytes | None:
        self._fail()
        return await super().get(key)

    async def create(self, key: str, value: bytes, leased: bool = False) -> bool:
        self._fail()
        is_new = await super().create(key, value, leased)
        self.writes += is_new
        return is_new

    async def replace(self, key: str, old: bytes, new: bytes, *, leased: bool = False) -> bool:
        self._fail()
        is_replaced = await super().replace(key, old, new, leased=leased)
        self.writes += is_replaced
        return is_replaced

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ClusterUnavailableError("etcd", why="it does not answer")


def policies_at(
    folder: Path, shared: Followers | None = None, *, records: EmbeddedRecords | None = None
) -> Policies:
    """Return the policies of a node. shared: the records of its cluster; None: it is alone, unless it has others."""
    records = EmbeddedRecords(shared) if shared is not None else records
    return Policies(CurrentPolicy(), NodeCapacity(1 << 30), PolicyFile(str(folder)), records)


def numbered(record: PolicyRecord) -> list[tuple[int, str]]:
    return [(version.number, version.text) for version in record.versions]


@pytest.mark.parametrize("nodes", [0, 1, 3])
async def test_of_texts_made_from_one_version_only_one_is_set(tmp_path: Path, nodes: int) -> None:
    """nodes: of a cluster; 0: without one."""
    shared = Followers() if nodes else None
    policies = [policies_at(tmp_path / str(number), shared) for number in range(max(1, nodes))]
    await policies[0].set("# first\n", author="a", base=0)

    async def set_one(number: int) -> bool:
        try:
            await policies[number % len(policies)].set(f"# {number}\n", author="a", base=1)
        except PolicyConflictError:
            return False
        return True

    assert sum(await asyncio.gather(*map(set_one, range(AT_ONCE)))) == 1
    for policy in policies:
        if await set_refused(policy):  # a node that has not heard of the change hears of it by the conflict
            assert policy.current.record.number == 2
        await policy.stop()


@pytest.mark.parametrize("members", [None, 1, 3])
async def test_more_replicas_than_nodes_are_named(tmp_path: Path, members: int | None) -> None:
    """members: of the cluster; None: not known yet."""
    rules = [f'[[rule]]\nmatch = ["/d/**"]\nreplicas = {value}\n' for value in (1, 3, 4, '"auto"')]
    document = parse_policy("".join(rules))
    alone, clustered = policies_at(tmp_path / "a"), policies_at(tmp_path / "b", Followers())
    clustered.capacity.members = members
    why = "this node belongs to no cluster"
    assert alone.warnings(document) == [
        f"rule 2, line 4: replicas = 3 needs as many nodes, and {why}",
        f"rule 3, line 7: replicas = 4 needs as many nodes, and {why}",
    ]
    numbers = {None: [], 1: [2, 3], 3: [3]}[members]
    named = [warning.partition(",")[0] for warning in clustered.warnings(document)]
    assert named == [f"rule {number}" for number in numbers]
    for policies in (alone, clustered):
        await policies.stop()


async def set_refused(policies: Policies) -> bool:
    try:
        await policies.set("# another\n", author="a", base=1)
    except PolicyConflictError:
        return True
    return False


@pytest.mark.parametrize("clustered", [False, True])
async def test_changes_that_are_made_again_after_a_conflict_are_all_in_force(
    tmp_path: Path, *, clustered: bool
) -> None:
    shared = Followers() if clustered else None
    count = 3 if clustered else 1
    policies = [policies_at(tmp_path / str(number), shared) for number in range(count)]

    async def add(number: int) -> None:
        policy = policies[number % count]
        for _ in range(
            AT_ONCE
        ):  # each conflict is the success of another change, of which the node hears by it
            before = policy.current.record
            try:
                await policy.set(f"{before.text}# {number}\n", author="a", base=before.number)
            except PolicyConflictError:
                continue
            return
        raise AssertionError

    await asyncio.gather(*(add(number) for number in range(AT_ONCE)))
    raw = shared.mirror[KEY] if shared is not None else (tmp_path / "0" / FILE).read_bytes()
    record = decode_record(raw)
    assert sorted(record.text.splitlines()) == [f"# {number}" for number in range(AT_ONCE)]
    assert record.number == AT_ONCE
    if not clustered:
        assert policies[0].current.record == record


async def test_texts_that_are_made_from_no_version_are_set_one_after_the_other(tmp_path: Path) -> None:
    policies = policies_at(tmp_path)
    records = await asyncio.gather(*(policies.set(f"# {number}\n", author="a") for number in range(AT_ONCE)))
    assert sorted(record.number for record in records) == list(range(1, AT_ONCE + 1))
    raw = (tmp_path / FILE).read_bytes()
    assert policies.current.record == decode_record(raw)


async def test_a_repeated_request_is_no_conflict(tmp_path: Path) -> None:
    policies = policies_at(tmp_path)
    first = await policies.set("# 1\n", author="a", base=0)
    assert await policies.set("# 1\n", author="a", base=0) == first


async def test_a_late_report_of_an_earlier_version_changes_nothing(tmp_path: Path) -> None:
    shared = Followers()
    policies = policies_at(tmp_path, shared)
    joined = asyncio.Event()
    joined.set()
    policies.start(joined)
    first = await policies.set("# 1\n", author="a")
    second = await policies.set("# 2\n", author="a")
    policies._on_record(KEY, encode_record(first))
    await policies._tasks.wait()
    assert policies.current.record == second
    await policies.stop()


@pytest.mark.parametrize("count", [3, VERSIONS_KEPT_MAX, VERSIONS_KEPT_MAX + 1, 5 * VERSIONS_KEPT_MAX])
async def test_a_cluster_that_begins_anew_is_obeyed(tmp_path: Path, count: int) -> None:
    """Its etcd lost its data, and another node has set a policy since."""
    shared = Followers()
    policies = policies_at(tmp_path, shared)
    for number in range(count):
        await policies.set(f"# {number}\n", author="a")
    anew = PolicyRecord().followed_by("# anew\n", author="b", now_s=time.time() + 1.0)
    shared.publish(KEY, encode_record(anew))
    policies._on_record(KEY, encode_record(anew))
    await policies._tasks.wait()
    assert numbered(policies.current.record) == [(1, "# anew\n")]
    assert decode_record(shared.mirror[KEY]) == anew
    await policies.stop()


async def test_a_rule_ends_with_its_mount_on_a_node_that_has_not_heard_of_it_yet(tmp_path: Path) -> None:
    shared = Followers()
    first, second = policies_at(tmp_path / "a", shared), policies_at(tmp_path / "b", shared)
    before = '[tenant.t]\npaths = ["/t/**"]\n'
    text = with_rule(before, "/d/**", {"ttl": '"2d"'}, of_mount=True)
    await first.set(text, author="a")
    await second.end_rule_of_mount("/d")
    assert decode_record(shared.mirror[KEY]).text == second.current.record.text == before
    await second.end_rule_of_mount("/d")
    assert second.current.record.number == 2
    for policies in (first, second):
        await policies.stop()


def history(name: str, count: int) -> PolicyRecord:
    """Return a record of so many versions."""
    record = PolicyRecord()
    for number in range(1, count + 1):
        record = record.followed_by(f"# {name}{number}\n", author=name, now_s=float(number))
    return record


def joined() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ([history("a", 2), history("a", 1)], 2),
        ([history("a", 2), history("a", 1), history("b", 1), PolicyRecord()], 1),
        ([history("a", 2), history("b", 2)], 2),
        ([history("a", VERSIONS_KEPT_MAX + 4), history("b", 2), history("a", 3)], VERSIONS_KEPT_MAX + 4),
    ],
    ids=["earlier", "mixed", "divided", "long"],
)
@pytest.mark.parametrize("is_last_first", [False, True])
async def test_nodes_with_other_histories_agree_after_a_data_loss(
    tmp_path: Path, records: list[PolicyRecord], count: int, *, is_last_first: bool
) -> None:
    """One of them restores its record first, and some heard nothing of later versions. is_last_first: it is the last.
    They do not replace each other's record for ever."""
    shared = Followers()
    flaky = [FlakyRecords(shared) for _ in records]
    policies = [policies_at(tmp_path / str(number), records=each) for number, each in enumerate(flaky)]
    for policy, record in zip(policies, records, strict=True):
        policy.current.adopt(record)
    for policy in reversed(policies) if is_last_first else policies:
        policy.start(joined())
        await pass_time(1)
    await pass_time(60)
    agreed = decode_record(shared.mirror[KEY])
    assert agreed.number >= count
    assert sum(each.writes for each in flaky) <= len(records)
    for policy in policies:
        assert policy.current.record == agreed
    last = await policies[0].set("# last\n", author="a", base=agreed.number)
    await pass_time(1)
    for policy in policies:
        assert policy.current.record == last
        await policy.stop()


async def test_a_change_is_made_although_an_earlier_version_is_recorded(tmp_path: Path) -> None:
    """Its record was restored, and this node has not heard of that."""
    shared = Followers()
    policies = policies_at(tmp_path, shared)
    policies.current.adopt(history("a", 2))
    shared.publish(KEY, encode_record(history("a", 1)))
    assert await set_refused(policies)
    assert decode_record(shared.mirror[KEY]) == history("a", 2)
    assert (await policies.set("# 3\n", author="a", base=2)).number == 3
    shared.publish(KEY, encode_record(history("a", 1)))
    assert (await policies.set("# a1\n", author="a")).text == policies.current.record.text == "# a1\n"
    await policies.stop()


@pytest.mark.parametrize("at_start", [False, True])
async def test_a_lost_record_is_restored_although_etcd_does_not_answer_at_first(
    tmp_path: Path, *, at_start: bool
) -> None:
    records = FlakyRecords(Followers())
    policies = policies_at(tmp_path, records=records)
    policies.current.adopt(history("a", 2))
    records.failures = 3 if at_start else 0
    policies.start(joined())
    await pass_time(60)
    if not at_start:
        records.failures = 3
        records.shared.publish(KEY, None)
        await pass_time(60)
    assert decode_record(records.shared.mirror[KEY]) == history("a", 2)
    records.shared.publish(KEY, encode_record(history("a", 3)))
    await pass_time(1)
    assert policies.current.record == history("a", 3)
    await policies.stop()
