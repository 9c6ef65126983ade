"""A policy of a cluster: the same on every node, also while etcd is away and after it lost its data."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.testing.etcd import etcd_server
from tests.integration.cli.host import wait_until

from .cluster_fixture import ClusterFixture, policy_shown, set_policy
from .conftest import UNREACHABLE

pytestmark = [pytest.mark.fuse, pytest.mark.server("etcd"), pytest.mark.timeout(180)]

FIRST = '[[rule]]\nmatch = ["/hot/**"]\npriority = "high"\n'
SECOND = '[[rule]]\nmatch = ["/hot/**"]\npriority = "low"\n'


def test_a_policy_is_in_force_on_all_nodes(cluster: ClusterFixture) -> None:
    cluster.start(3)
    first, second, third = cluster.hosts
    assert set_policy(first, FIRST) == 1
    for host in cluster.hosts:
        wait_until(lambda host=host: policy_shown(host)["text"] == FIRST)  # type: ignore[misc]
    assert set_policy(second, SECOND) == 2
    wait_until(lambda: policy_shown(third)["number"] == 2)
    assert third.json("policy", "rollback")["number"] == 3
    wait_until(lambda: policy_shown(first)["text"] == FIRST)
    late = cluster.add()
    cluster.up(late)
    wait_until(lambda: policy_shown(late)["number"] == 3)


def test_rules_that_are_set_on_all_nodes_at_the_same_time_are_all_in_force(cluster: ClusterFixture) -> None:
    cluster.start(3)
    with ThreadPoolExecutor(8) as pool:
        commands = [
            pool.submit(cluster.hosts[number % 3].ok, "policy", "rule", f"/{number}/**", f"ttl={number + 1}h")
            for number in range(8)
        ]
        for command in commands:
            command.result()
    for host in cluster.hosts:
        wait_until(lambda host=host: policy_shown(host)["number"] == 8)  # type: ignore[misc]
        assert policy_shown(host)["text"].count("[[rule]]") == 8
        for number in range(8):
            decisions = {
                row["effect"]: row["value"] for row in host.json("policy", "explain", f"/{number}/x")
            }
            assert decisions["ttl"] == f"{number + 1}h"


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_policy_outlives_etcd_and_its_data(
    make_cluster: Callable[..., ClusterFixture], tmp_path: Path
) -> None:
    with etcd_server() as etcd:
        cluster = make_cluster(server=etcd)
        cluster.start(2)
        first, second = cluster.hosts
        set_policy(first, FIRST)
        wait_until(lambda: policy_shown(second)["text"] == FIRST)
        etcd.kill()
        assert policy_shown(first)["text"] == policy_shown(second)["text"] == FIRST
        other = first.base / "other.toml"
        other.write_text(SECOND)
        refused = first.headrace("policy", "set", other)
        assert refused.returncode == 32 and "Failed to connect" in refused.stderr
        second.wait_pid("node", other_than=second.kill("node"))
        wait_until(lambda: policy_shown(second)["text"] == FIRST)  # from the file: etcd is away
        etcd.lose_data()
        etcd.start()
        cluster.wait_members(2)
        third = cluster.add()
        cluster.up(third)
        wait_until(lambda: policy_shown(third)["text"] == FIRST)


def test_nodes_divide_the_budget_of_an_origin(cluster: ClusterFixture) -> None:
    for number in range(60):
        cluster.put(f"d/{number}", 1000 + number)
    cluster.start(2)
    set_policy(cluster.hosts[0], f'[origin."file://{cluster.truth}"]\nrequests_s = 40\n')

    def rates() -> list[float]:
        shown = [origin for host in cluster.hosts for origin in cluster.status(host)["policy"]["origins"]]
        return [origin["requests_s"] for origin in shown]

    wait_until(lambda: len(rates()) == 2 and sum(rates()) <= 40 * 1.02)
    begun_s = time.monotonic()
    cluster.hosts[0].ok("load", "/d")
    assert time.monotonic() - begun_s >= (60 - 40) / 40  # a second's worth may pass at once
    for host in cluster.hosts:
        host.assert_right()
    assert sum(rates()) <= 40 * 1.1


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_policy_is_tried_on_all_nodes(make_cluster: Callable[..., ClusterFixture]) -> None:
    """Their parts are summed, and what is pinned on another node counts."""
    cluster = make_cluster(lease_s=30)
    for number in range(24):
        cluster.put(f"hot/{number}", 100_000 + number)
    cluster.start(3)
    first = cluster.hosts[0]
    first.ok("load", "/hot")
    path = first.base / "policy.toml"
    path.write_text(FIRST)
    tried = first.json("policy", "try", path)
    (row,) = tried["outcomes"]
    assert (row["files"], row["bytes"]) == (24, sum(100_000 + number for number in range(24)))
    assert tried["unanswered"] == {}
    owners = cluster.owners([f"hot/{number}" for number in range(24)])
    name = next(name for name, host in owners.items() if host is not first)
    first.ok("pin", f"/{name}")
    limit = '[tenant.hot]\npaths = ["/hot/**"]\nlimit = "30KiB"\n'
    path.write_text(limit)
    refused = first.headrace("policy", "set", path)
    assert refused.returncode == 2
    assert f"on node n{cluster.hosts.index(owners[name])}, where 97.7 KiB are pinned" in refused.stderr
    silent = cluster.hosts[2]
    silent.kill("node", signal.SIGSTOP)
    path.write_text(FIRST)
    try:
        named = first.headrace("policy", "try", path)
        assert "node n2 does not answer: its files are not counted" in named.stderr
    finally:
        silent.kill("node", signal.SIGCONT)
