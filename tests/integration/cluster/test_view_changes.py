"""Nodes that come and go faster than what they own can be handed over, while others read."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.cli.host import Host

from .cluster_fixture import ClusterFixture
from .conftest import MakeCluster

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(300)]

OLD, NEW = 60, 12
FILE_BYTES = 80_000
HAND_OVER_BYTES_S = 256 << 10
"""Slow: a node that joins is to get some 2 MB, and the next change comes after one or two seconds."""
LIMIT_S = 90.0


def crash(cluster: ClusterFixture, host: Host) -> None:
    """All of the host's processes at once."""
    cluster.ups[-1].signal(signal.SIGKILL)
    host.close()


def leave(cluster: ClusterFixture, host: Host) -> None:
    host.ok("down", host.mount)


def names_of(cluster: ClusterFixture, folder: str, count: int) -> list[str]:
    names = [f"{folder}/{number}" for number in range(count)]
    for number, name in enumerate(names):
        cluster.put(name, FILE_BYTES + number)
    return names


def size_bytes(cluster: ClusterFixture, names: list[str]) -> int:
    return sum((cluster.truth / name).stat().st_size for name in names)


def read_at_once(hosts: list[Host], names: list[str], meanwhile: Callable[[], object] = lambda: None) -> None:
    with ThreadPoolExecutor(len(hosts)) as pool:
        reading = [pool.submit(host.assert_right, *names, limit_s=LIMIT_S) for host in hosts]
        meanwhile()
        for future in reading:
            future.result()


def test_members_change_faster_than_the_hand_over(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(rebalance_bytes_s=HAND_OVER_BYTES_S)
    old = names_of(cluster, "old", OLD)
    new = [names_of(cluster, f"new-{number}", NEW) for number in range(6)]
    fresh = names_of(cluster, "fresh", NEW)
    cluster.start(2)
    staying = cluster.hosts[:2]
    read_at_once(staying, old)
    assert cluster.origin() == size_bytes(cluster, old)
    third, fourth = cluster.add(), cluster.add()
    changes: list[Callable[[], object]] = [
        lambda: cluster.up(third),
        lambda: crash(cluster, third),
        lambda: cluster.up(fourth),
        lambda: cluster.up(third),
        lambda: leave(cluster, fourth),
        lambda: cluster.up(fourth),
    ]
    for names, change in zip(new, changes, strict=True):
        read_at_once(staying, [*names, *old], change)
    cluster.wait_members(4)
    for host in cluster.hosts:
        cluster.wait_for(lambda host=host: not cluster.status(host)["rebalance"]["running"], LIMIT_S)  # type: ignore[misc]
        host.assert_right(*old, *(name for names in new for name in names), limit_s=LIMIT_S)
    assert all(cluster.status(host)["cluster"]["epoch"] >= len(changes) - 1 for host in staying)
    read = size_bytes(cluster, [*old, *(name for names in new for name in names)])
    for host in staying:  # in the turmoil a file may have two owners, but nobody fetches a byte twice
        assert cluster.origin(hosts=[host]) <= read
    before, missed = cluster.origin(), cluster.misses()
    read_at_once(cluster.hosts, fresh)
    fetched = cluster.origin() - before
    assert fetched >= size_bytes(cluster, fresh)
    assert fetched <= size_bytes(cluster, fresh) + (cluster.misses() - missed) * (FILE_BYTES + NEW)
