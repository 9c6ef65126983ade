"""etcd killed, started again, silent, robbed: reading goes on, and the cluster comes together again by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.servers import ServerMissing
from tests.integration.cli.host import Host
from tests.integration.cluster.cluster_fixture import ClusterFixture
from tests.integration.cluster.conftest import UNREACHABLE

pytestmark = pytest.mark.expected_warnings(*UNREACHABLE)


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    try:
        with etcd_server() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(tmp_path: Path, own_etcd: EtcdServer) -> Iterator[ClusterFixture]:
    cluster = ClusterFixture(tmp_path, own_etcd.address)
    for number in range(20):
        cluster.put(f"a/{number}", 30_000 + number)
    yield cluster
    cluster.close()


def trouble(cluster: ClusterFixture, host: Host) -> str:
    return str(cluster.status(host)["cluster"]["membership"]["trouble"])


def away(cluster: ClusterFixture) -> Callable[[], bool]:
    return lambda: all("etcd has been unavailable" in trouble(cluster, host) for host in cluster.hosts)


def well(cluster: ClusterFixture, count: int) -> Callable[[], bool]:
    return lambda: all(
        not trouble(cluster, host) and len(cluster.members(host)) == count for host in cluster.hosts
    )


def test_etcd_is_killed_and_started_again(cluster: ClusterFixture, own_etcd: EtcdServer) -> None:
    cluster.start(3)
    cluster.hosts[0].assert_right()
    own_etcd.kill()
    cluster.wait_for(away(cluster))
    cluster.put("a/new", 40_000)
    for host in cluster.hosts:
        assert len(cluster.members(host)) == 3
        host.assert_right(*[f"a/{number}" for number in range(20)])
    done = cluster.hosts[0].headrace("mount", "add", "/x", cluster.truth)
    assert done.returncode == 32
    assert "Traceback" not in done.stderr
    own_etcd.start()
    cluster.wait_for(well(cluster, 3))
    cluster.hosts[1].ok("sync", cluster.hosts[1].mount)
    for host in cluster.hosts:
        host.assert_right()


def test_etcd_is_silent_for_longer_than_the_leases(cluster: ClusterFixture, own_etcd: EtcdServer) -> None:
    cluster.start(2)
    own_etcd.signal(signal.SIGSTOP)
    try:
        cluster.wait_for(away(cluster))
        for host in cluster.hosts:
            host.assert_right()
        cluster.wait_for(
            lambda: all(
                cluster.status(host)["cluster"]["membership"]["etcd_away_s"] > 4 for host in cluster.hosts
            )
        )
        assert all(len(cluster.members(host)) == 2 for host in cluster.hosts)
    finally:
        own_etcd.signal(signal.SIGCONT)
    cluster.wait_for(well(cluster, 2))
    for host in cluster.hosts:
        host.assert_right()


def test_etcd_loses_its_data(cluster: ClusterFixture, own_etcd: EtcdServer) -> None:
    cluster.start(2)
    extra = cluster.base / "extra"
    extra.mkdir()
    (extra / "x").write_bytes(b"x of extra")
    cluster.hosts[0].ok("mount", "add", "/extra", extra)
    cluster.wait_for(lambda: len(cluster.hosts[1].json("mount", "list")) == 2)
    own_etcd.kill()
    own_etcd.lose_data()
    cluster.wait_for(away(cluster))
    own_etcd.start()
    cluster.wait_for(well(cluster, 2))
    for host in cluster.hosts:
        assert host.headrace("cat", "/extra/x").stdout == "x of extra"
        host.assert_right()
    late = cluster.add()  # finds all there is
    cluster.up(late)
    cluster.wait_for(well(cluster, 3))
    cluster.wait_for(lambda: len(late.json("mount", "list")) == 2)
    assert late.headrace("cat", "/extra/x").stdout == "x of extra"


def test_a_node_that_was_killed_takes_its_place_again(cluster: ClusterFixture) -> None:
    cluster.start(2)
    host = cluster.hosts[0]
    before = host.kill("node")  # `up` starts it again at once, with its old lease still there
    cluster.wait_for(
        lambda: host.pid_of("node") not in (0, before) and not host.headrace("status").returncode
    )
    cluster.wait_for(well(cluster, 2))
    for member in cluster.hosts:
        member.assert_right()


def test_a_node_that_dies_while_etcd_is_away_goes_by_its_last_view(
    cluster: ClusterFixture, own_etcd: EtcdServer
) -> None:
    cluster.start(2)
    host, other = cluster.hosts
    own_etcd.kill()
    cluster.wait_for(away(cluster))
    before = host.kill("node")
    cluster.wait_for(
        lambda: host.pid_of("node") not in (0, before) and not host.headrace("status").returncode
    )
    assert "not in the cluster" in trouble(cluster, host)
    assert "not in the cluster" in host.ok("status")
    assert not cluster.status(host)["cluster"]["membership"]["joined"]
    assert cluster.members(host) == ["n0", "n1"]
    host.assert_right()  # nothing of it was cached
    assert cluster.status(host)["peers"]["reads"] > 0
    other.assert_right()
    for words in (("load", "/a"), ("node", "drain"), ("mount", "add", "/x", cluster.truth)):
        done = host.headrace(*words)
        assert done.returncode == 32, done
        assert "Traceback" not in done.stderr
    own_etcd.start()
    cluster.wait_for(well(cluster, 2))
    assert cluster.status(host)["cluster"]["membership"]["joined"]
    cluster.put("a/new", 40_000)
    cluster.wait_for(lambda: other.headrace("sync", other.mount).returncode == 0)  # it reaches it again
    host.ok("load", "/a")
    for member in cluster.hosts:
        member.assert_right()
    assert "WARNING headrace.cluster.membership this node is not in the cluster" in log_of(host)


def log_of(host: Host) -> str:
    return "".join(path.read_text() for path in host.run_folder.glob("*.log"))


@pytest.mark.expected_warnings("node did not start")
def test_without_etcd_a_node_does_not_start(tmp_path: Path, own_etcd: EtcdServer) -> None:
    cluster = ClusterFixture(tmp_path, own_etcd.address)
    try:
        cluster.put("a", 5)
        own_etcd.kill()
        host = cluster.add()
        up = host.start("up", cluster.truth, host.mount, "--cache", f"{host.cache}:256MiB")
        assert up.wait() == 32
        assert "etcd" in up.said
        assert "Traceback" not in up.said
    finally:
        cluster.close()
