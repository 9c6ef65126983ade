"""Nodes killed and stopped at random moments while every node's readers go on, and one whose place another took.

All tests of this file share one cluster.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from headrace.testing.etcd import etcd_server
from headrace.testing.servers import ServerMissing
from tests.integration.cli.host import MIB, Host, send
from tests.integration.cluster.cluster_fixture import ClusterFixture
from tests.integration.cluster.conftest import UNREACHABLE

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(300), pytest.mark.expected_warnings(*UNREACHABLE)]

LIMIT_S = 90.0
ROUNDS = (("kill", 0), ("stop", 1), ("kill", 2), ("stop", 0))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterFixture]:
    try:
        with etcd_server() as etcd:
            cluster = ClusterFixture(tmp_path_factory.mktemp("kills"), etcd.address, replicas=2)
            try:
                for number in range(len(ROUNDS)):
                    for file in range(16):
                        cluster.put(f"{number}/{file}", 50_000 + file)
                    cluster.put(f"{number}/large", 5 * MIB + number)
                for file in range(16):
                    cluster.put(f"twin/{file}", 50_000 + file)
                cluster.start(3)
                yield cluster
            finally:
                cluster.close()
    except ServerMissing as error:
        pytest.skip(str(error))


def below(cluster: ClusterFixture, folder: str) -> list[str]:
    return [name for name in cluster.hosts[0].names() if name.startswith(f"{folder}/")]


def test_killed_and_stopped_at_random_moments(cluster: ClusterFixture) -> None:
    chance = random.Random(5)
    for number, (how, victim) in enumerate(ROUNDS):
        names = below(cluster, str(number))
        host = cluster.hosts[victim]
        before = host.wait_pid("node")
        with ThreadPoolExecutor(len(cluster.hosts)) as pool:
            reading: dict[int, Future[None]] = {
                index: pool.submit(node.assert_right, *names, limit_s=LIMIT_S)
                for index, node in enumerate(cluster.hosts)
            }
            time.sleep(chance.random() * 0.5)  # the moment is what is tested
            send(before, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            try:
                for index, future in reading.items():
                    if index != victim:
                        future.result()
            finally:
                if how == "stop":
                    os.kill(before, signal.SIGCONT)
            reading[victim].result()  # its own readers waited
        if how == "kill":
            cluster.wait_for(lambda before=before, host=host: host.pid_of("node") not in (0, before), LIMIT_S)  # type: ignore[misc]
            cluster.wait_for(lambda host=host: not host.headrace("status").returncode, LIMIT_S)  # type: ignore[misc]
        for one_host in cluster.hosts:
            cluster.wait_for(lambda node=one_host: len(cluster.members(node)) == 3, LIMIT_S)  # type: ignore[misc]


@pytest.mark.expected_warnings("another node has this node's id")
def test_a_node_that_hung_and_whose_place_another_took(cluster: ClusterFixture) -> None:
    names = below(cluster, "twin")
    first, _, hung = cluster.hosts
    twin = cluster.add(node_id="n2")
    hung.kill("node", signal.SIGSTOP)
    try:
        cluster.up(twin)
        places = {host.environment["HEADRACE_LISTEN"] for host in (*cluster.hosts[:2], twin)}
        cluster.wait_for(lambda: {member["address"] for member in members(cluster, first)} == places, LIMIT_S)
        for host in (first, twin):
            host.assert_right(*names, limit_s=LIMIT_S)
    finally:
        hung.kill("node", signal.SIGCONT)
    cluster.wait_for(lambda: "another node took the id" in membership(cluster, hung)["trouble"], LIMIT_S)
    assert "another node took the id" in hung.ok("status")
    for host in cluster.hosts:
        host.assert_right(*names, limit_s=LIMIT_S)
    assert {member["address"] for member in members(cluster, first)} == places
    assert not membership(cluster, twin)["trouble"]


def members(cluster: ClusterFixture, host: Host) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = cluster.status(host)["cluster"]["members"]
    return rows


def membership(cluster: ClusterFixture, host: Host) -> dict[str, str]:
    report: dict[str, str] = cluster.status(host)["cluster"]["membership"]
    return report
