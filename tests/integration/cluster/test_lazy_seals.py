"""Each node seals for itself: files that other nodes own come through the lazy layer and stay."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from headrace.fuse import device
from headrace.seal.catalogue import Catalogue, SealId
from headrace.seal.mounted import seals_below
from tests.integration.cli.host import Host, drop_caches, wait_until

from .cluster_fixture import ClusterFixture
from .conftest import UNREACHABLE

pytestmark = pytest.mark.root


@pytest.fixture
def sealed_cluster(cluster: ClusterFixture) -> Iterator[ClusterFixture]:
    """Two nodes with a lazy seal each; nothing is cached."""
    for number in range(40):
        cluster.put(f"small/{number % 4}/{number}", 50_000 + number)
    cluster.put("large", (9 << 20) + 1)
    cluster.start(2)
    try:
        for host in cluster.hosts:
            host.ok("seal", host.mount, "--as", "all@1", "--at", host.base / "sealed", "--lazy")
        yield cluster
    finally:
        for path in reversed(seals_below(str(cluster.base))):
            device.unmount(path, detach=True)


def is_whole(host: Host) -> bool:
    """Return whether the seal lacks nothing, and the view of the whole is mounted: no layer runs any more."""
    if any("headrace.fuse.lazy_main" in words for words in host.processes().values()):
        return False
    return not Catalogue.of_cache(str(host.cache)).record(SealId("all", 1)).is_lazy


def test_what_other_nodes_own_is_kept_and_each_byte_leaves_the_origin_once(
    sealed_cluster: ClusterFixture,
) -> None:
    cluster = sealed_cluster
    for host in cluster.hosts:
        host.assert_right(mount=host.base / "sealed")
    assert cluster.misses() or cluster.origin() == cluster.truth_bytes()
    for host in cluster.hosts:
        wait_until(lambda host=host: is_whole(host))  # type: ignore[misc]
    records = [Catalogue.of_cache(str(host.cache)).record(SealId("all", 1)) for host in cluster.hosts]
    assert records[0].id == records[1].id
    for host in cluster.hosts:
        host.kill_all()
    drop_caches(*(host.cache for host in cluster.hosts))
    for host in cluster.hosts:
        host.assert_right(mount=host.base / "sealed")


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_node_that_dies_meanwhile_costs_the_other_no_file(sealed_cluster: ClusterFixture) -> None:
    first, second = sealed_cluster.hosts
    first.assert_right(*first.names()[:10], mount=first.base / "sealed")
    sealed_cluster.ups[1].signal(signal.SIGKILL)
    os.kill(second.pid_of("node"), signal.SIGKILL)
    first.assert_right(mount=first.base / "sealed")
    wait_until(lambda: is_whole(first))
    first.ok("seal", "verify", "all@1")
