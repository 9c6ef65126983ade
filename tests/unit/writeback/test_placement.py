"""The choice of the nodes that keep a node's copies."""

from __future__ import annotations

import pytest

from headrace.ring.ring import Ring
from headrace.ring.view import ClusterView, NodeInfo
from headrace.writeback.replication.placement import choose_replicas


def view_of(nodes: list[NodeInfo]) -> ClusterView:
    return ClusterView(1, {node.id: node for node in nodes}, Ring([]))


def node(number: int, zone: str = "", *, draining: bool = False) -> NodeInfo:
    return NodeInfo(f"node-{number}", "i", "h:1", zone, 1, "1", 4, draining)


def firsts(nodes: list[NodeInfo]) -> dict[str, str]:
    return {member.id: choose_replicas(view_of(nodes), member.id)[0].id for member in nodes}


@pytest.mark.parametrize("count", [2, 3, 8, 100])
def test_each_node_is_the_first_of_one_other(count: int) -> None:
    successors = firsts([node(number) for number in range(count)])
    assert sorted(successors.values()) == sorted(successors)
    assert all(name != other for name, other in successors.items())


def test_one_that_comes_changes_the_first_of_one_other() -> None:
    before = firsts([node(number) for number in range(20)])
    after = firsts([node(number) for number in range(21)])
    assert sum(before[name] != after[name] for name in before) == 1


def test_all_that_can_come_in_order_and_those_of_other_zones_first() -> None:
    nodes = [node(number, "ab"[number % 2]) for number in range(8)]
    nodes += [node(8, "b", draining=True)]
    replicas = choose_replicas(view_of(nodes), "node-0")
    assert [replica.zone for replica in replicas] == ["b"] * 4 + ["a"] * 3
    assert {replica.id for replica in replicas} == {f"node-{number}" for number in range(1, 8)}
