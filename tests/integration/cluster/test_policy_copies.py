"""Rules about copies: made, used when a node dies, and dropped; every byte is held against the origin."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.integration.cli.host import Host, wait_until

from .cluster_fixture import ClusterFixture, filled, policy_shown, read_all_at_once, set_policy
from .conftest import UNREACHABLE

pytestmark = [pytest.mark.fuse, pytest.mark.server("etcd"), pytest.mark.timeout(240)]


def rule(value: object, match: str = "/**") -> str:
    return f'[[rule]]\nmatch = ["{match}"]\nreplicas = {value}\n'


def apply(cluster: ClusterFixture, text: str, hosts: list[Host] | None = None) -> None:
    """Set a policy, and wait until these hosts obey it."""
    hosts = hosts or cluster.hosts
    set_policy(hosts[0], text)
    for host in hosts:
        wait_until(lambda host=host: policy_shown(host)["text"] == text)  # type: ignore[misc]


def location(host: Host, name: str) -> dict[str, Any]:
    row: dict[str, Any] = host.json("stat", host.mount / name)
    return {"cached": row["cached"], **row["location"]}


def owners_have(cluster: ClusterFixture, name: str, copies: int, hosts: list[Host] | None = None) -> bool:
    """Return whether exactly the owners of a file have it, and not as borrowed."""
    rows = [(host, location(host, name)) for host in hosts or cluster.hosts]
    owners = rows[0][1]["owners"]
    assert len(owners) == copies and all(row["owners"] == owners for _, row in rows)
    having = [host.base.name for host, row in rows if row["cached"] == "yes" and row["role"] != "borrower"]
    return sorted(having) == sorted(owners)


def copies(cluster: ClusterFixture, key: str, hosts: list[Host] | None = None) -> int:
    return sum(cluster.status(host)["copies"][key] for host in hosts or cluster.hosts)


def moves_ended(cluster: ClusterFixture, hosts: list[Host]) -> bool:
    reports = [cluster.status(host) for host in hosts]
    return not any(report["rebalance"]["running"] or report["copies"]["files_waiting"] for report in reports)


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_copies_of_a_rule_serve_when_a_node_dies_and_go_when_it_wants_fewer(cluster: ClusterFixture) -> None:
    filled(cluster, small=20, large=2)
    names = ["small/0/0", "small/1/1", "large/0", "large/1"]
    cluster.start(4)
    cluster.hosts[0].ok("load", "/")  # each file at its owner
    assert cluster.origin() == cluster.truth_bytes()
    apply(cluster, rule(2))
    for name in names:
        wait_until(lambda name=name: owners_have(cluster, name, 2))  # type: ignore[misc]
    wait_until(lambda: moves_ended(cluster, cluster.hosts))
    assert cluster.origin() == cluster.truth_bytes()
    row = location(cluster.hosts[0], "large/0")
    assert (row["copies"], row["copies_by"], row["segments"]) == (2, "rule 1, line 1", 1)

    hosts = cluster.hosts[1:]
    before = cluster.origin(hosts=hosts)
    requests = cluster.origin("requests", hosts=hosts)
    cluster.ups[0].signal(signal.SIGKILL)  # the supervisor: nobody starts the node again
    cluster.hosts[0].kill("node")
    read_all_at_once(hosts)
    assert cluster.origin(hosts=hosts) == before
    cluster.wait_members(3, hosts)
    wait_until(lambda: moves_ended(cluster, hosts))
    for name in names:
        wait_until(lambda name=name: owners_have(cluster, name, 2, hosts))  # type: ignore[misc]
    read_all_at_once(hosts)
    assert cluster.origin(hosts=hosts) == before
    assert cluster.origin("requests", hosts=hosts) - requests <= 12  # listings of directories that n0 owned

    apply(cluster, rule(1), hosts)
    wait_until(lambda: moves_ended(cluster, hosts))
    for name in names:
        wait_until(lambda name=name: owners_have(cluster, name, 1, hosts))  # type: ignore[misc]
    assert copies(cluster, "copies_dropped", hosts) > 0
    read_all_at_once(hosts)
    assert cluster.origin(hosts=hosts) == before


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_node_that_was_away_makes_the_copies_when_it_is_back(cluster: ClusterFixture) -> None:
    filled(cluster, small=12, large=1)
    cluster.start(3)
    cluster.hosts[0].ok("load", "/")
    away = cluster.hosts[2]
    pid = away.kill("node", signal.SIGSTOP)
    try:
        cluster.wait_members(2, cluster.hosts[:2])
        set_policy(cluster.hosts[0], rule(3))
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.wait_members(3)
    wait_until(lambda: policy_shown(away)["text"] == rule(3))
    for name in ("small/0/0", "small/3/3", "large/0"):
        wait_until(lambda name=name: owners_have(cluster, name, 3))  # type: ignore[misc]
    read_all_at_once(cluster.hosts)


def test_a_file_that_is_read_gets_the_copies_of_its_rule(cluster: ClusterFixture) -> None:
    filled(cluster, small=12, large=1)
    cluster.start(3)
    apply(cluster, rule(2, "/large/") + rule(3, "/small/0/*"))
    cluster.hosts[1].assert_right()
    wait_until(lambda: moves_ended(cluster, cluster.hosts))
    assert cluster.origin() == cluster.truth_bytes()
    for name, count in (("large/0", 2), ("small/0/0", 3), ("small/0/4", 3)):
        wait_until(lambda name=name, count=count: owners_have(cluster, name, count))  # type: ignore[misc]
    assert copies(cluster, "copies_made") == 1 + 2 * 3
    row = location(cluster.hosts[0], "small/0/0")
    assert (row["copies"], row["copies_by"]) == (3, "rule 2, line 4")


def test_a_hot_file_gains_copies_that_others_find(cluster: ClusterFixture) -> None:
    cluster.put("hot", 300_000)
    cluster.put("cold", 300_000)
    cluster.start(3)
    apply(cluster, rule('"auto"'))
    owner = cluster.owners(["hot"])["hot"]
    readers = [host for host in cluster.hosts if host is not owner]
    for _ in range(6):  # reads come from the owner again, or from another node while the members are new
        for host in cluster.hosts:
            host.assert_right("hot")
        owner.ok("free", owner.mount / "hot")
    wait_until(lambda: location(owner, "hot")["holders"])
    for host in cluster.hosts:
        host.assert_right()
    row = location(owner, "hot")
    assert (row["copies"], row["copies_by"]) == (1, "rule 1, line 1, reads")
    assert row["owners"] == [owner.base.name] and location(owner, "cold")["holders"] == []
    holders = [host for host in readers if host.base.name in row["holders"]]
    assert len(holders) == len(row["holders"]) > 0
    for host in cluster.hosts:
        wait_until(lambda host=host: location(host, "hot")["holders"] == row["holders"])  # type: ignore[misc]
    for host in holders:
        wait_until(lambda host=host: location(host, "hot")["role"] == "holder")  # type: ignore[misc]
    wait_until(lambda: sum(cluster.status(host)["copies"]["hot_held"] for host in readers) == len(holders))
    assert cluster.status(owner)["copies"]["hot_bytes"] == len(holders) * 300_000
    apply(cluster, rule(1))
    for host in holders:
        wait_until(lambda host=host: location(host, "hot")["role"] == "borrower")  # type: ignore[misc]
    for host in cluster.hosts:
        host.assert_right()
