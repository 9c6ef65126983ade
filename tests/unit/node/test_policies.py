"""Several set the policy at the same time: each change is in force afterwards, or is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.base.errors import PolicyConflictError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.node.policies import FILE, KEY, Policies, PolicyFile
from headrace.node.space_policy import NodeCapacity
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import parse_policy
from headrace.policy.record import PolicyRecord, decode_record, encode_record

AT_ONCE = 8


def policies_at(folder: Path, shared: Followers | None = None) -> Policies:
    """Return the policies of a node. shared: the records of its cluster; None: it is alone."""
    records = None if shared is None else EmbeddedRecords(shared)
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


async def test_a_cluster_that_begins_anew_is_obeyed(tmp_path: Path) -> None:
    """Its etcd lost its data, and another node has set a policy since."""
    shared = Followers()
    policies = policies_at(tmp_path, shared)
    for number in range(3):
        await policies.set(f"# {number}\n", author="a")
    anew = PolicyRecord().followed_by("# anew\n", author="b", now_s=1.0)
    policies._on_record(KEY, encode_record(anew))
    await policies._tasks.wait()
    assert numbered(policies.current.record) == [(1, "# anew\n")]
    await policies.stop()
