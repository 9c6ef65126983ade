"""Nodes share what they cached; every byte read through every mount is held against the origin."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.cli.host import wait_until

from .cluster_fixture import ClusterFixture, filled, read_all_at_once
from .conftest import UNREACHABLE, MakeCluster

MIB = 1 << 20


def test_each_byte_leaves_the_origin_once(cluster: ClusterFixture) -> None:
    filled(cluster)
    cluster.start(4)
    read_all_at_once(cluster.hosts)
    assert cluster.origin() == cluster.truth_bytes()
    from_peers = sum(cluster.status(host)["peers"]["bytes_read"] for host in cluster.hosts)
    assert from_peers == 3 * cluster.truth_bytes()
    assert all(cluster.status(host)["peers"]["reads_failed"] == 0 for host in cluster.hosts)


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_killed_node_costs_no_read(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(replicas=2)
    filled(cluster)
    cluster.start(3)
    cluster.hosts[0].assert_right()
    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(host.assert_right) for host in cluster.hosts[1:]]
        cluster.ups[0].signal(signal.SIGKILL)  # the supervisor: nobody starts the node again
        cluster.hosts[0].kill("node")
        for future in reading:
            future.result()
    cluster.wait_members(2, cluster.hosts[1:])
    cluster.put("late", 70_000)
    for host in cluster.hosts[1:]:
        host.ok("sync", host.mount)
    read_all_at_once(cluster.hosts[1:])


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_stopped_node_costs_time_only(cluster: ClusterFixture) -> None:
    filled(cluster, small=12, large=1)
    cluster.start(3)
    pid = cluster.hosts[0].kill("node", signal.SIGSTOP)
    try:
        read_all_at_once(cluster.hosts[1:])
    finally:
        os.kill(pid, signal.SIGCONT)
    cluster.wait_members(3)
    cluster.hosts[0].assert_right()


def test_a_change_is_seen_everywhere_after_a_sync(cluster: ClusterFixture) -> None:
    filled(cluster, small=8, large=1)
    cluster.start(3)
    read_all_at_once(cluster.hosts)
    cluster.put("small/0/0", 60_000, seed=1)
    cluster.put("large/0", 8 * MIB, seed=1)
    cluster.put("new", 1000)
    (cluster.truth / "small/1/1").unlink()
    cluster.hosts[1].ok("sync", cluster.hosts[1].mount)
    for host in cluster.hosts:
        wait_until(lambda host=host: (host.read("small/1/1")["small/1/1"]["error"]) == "ENOENT")  # type: ignore[misc]
        host.assert_right()


def test_a_mount_that_one_node_adds_is_there_on_all(cluster: ClusterFixture) -> None:
    cluster.put("sub/a", 1000)
    cluster.start(2)
    first, second = cluster.hosts
    other = cluster.base / "other"
    other.mkdir()
    (other / "x").write_bytes(b"other x")
    first.ok("mount", "add", "/more", other)
    wait_until(lambda: len(second.json("mount", "list")) == 2)
    assert second.headrace("cat", "/more/x").stdout == "other x"
    second.ok("mount", "remove", "/more")
    wait_until(lambda: len(first.json("mount", "list")) == 1)


def test_a_mount_that_was_removed_while_a_node_was_down_stays_removed(cluster: ClusterFixture) -> None:
    cluster.put("sub/a", 1000)
    cluster.start(2)
    first, second = cluster.hosts
    other = cluster.base / "other"
    other.mkdir()
    for path in ("/more", "/kept"):
        first.ok("mount", "add", path, other)
    wait_until(lambda: len(second.json("mount", "list")) == 3)
    cluster.ups[1].signal(signal.SIGTERM)
    cluster.ups[1].wait()
    first.ok("mount", "remove", "/more")
    cluster.up(second)
    cluster.wait_members(2)
    for host in cluster.hosts:
        wait_until(lambda host=host: {row["path"] for row in host.json("mount", "list")} == {"/", "/kept"})  # type: ignore[misc]


def test_a_node_that_joins_takes_over_from_the_others(cluster: ClusterFixture) -> None:
    filled(cluster, small=80, large=1)
    cluster.start(2)
    read_all_at_once(cluster.hosts)
    before = cluster.origin()
    assert before == cluster.truth_bytes()
    joined = cluster.add()
    cluster.up(joined)
    cluster.wait_members(3)
    for host in cluster.hosts[:2]:
        wait_until(lambda host=host: not cluster.status(host)["rebalance"]["running"])  # type: ignore[misc]
    moved = sum(cluster.status(host)["rebalance"]["files_handed_over"] for host in cluster.hosts[:2])
    assert moved > 5
    joined.assert_right()
    assert cluster.origin() == before


def test_a_drained_node_leaves_nothing_to_fetch_again(cluster: ClusterFixture) -> None:
    filled(cluster, small=60, large=1)
    cluster.start(3)
    for host in cluster.hosts:
        host.ok("load", host.mount)
    before = cluster.origin()
    last = cluster.hosts[2]
    state = last.json("node", "drain", limit_s=60)
    assert state["failed_files"] == 0
    assert state["files_done"] > 0
    last.ok("down", last.mount)
    cluster.wait_members(2, cluster.hosts[:2])
    for host in cluster.hosts[:2]:
        host.assert_right()
    assert cluster.origin(hosts=cluster.hosts[:2]) <= before


@pytest.mark.expected_warnings("node did not start")
def test_an_id_that_is_taken_is_refused(cluster: ClusterFixture) -> None:
    cluster.put("a", 10)
    cluster.start(1)
    twin = cluster.add(node_id="n0")
    done = twin.start("up", cluster.truth, twin.mount, "--cache", f"{twin.cache}:256MiB")
    assert done.wait() == 33
    assert "n0" in done.said
    assert "Traceback" not in done.said
    cluster.hosts[0].assert_right()
