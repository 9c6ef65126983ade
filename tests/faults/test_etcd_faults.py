"""etcd killed, started again, silent, robbed: reading goes on, and the cluster comes together again by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.servers import ServerMissing
from tests.integration.cli.host import Host
from tests.integration.cluster.town import Town


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    try:
        with etcd_server() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def town(tmp_path: Path, own_etcd: EtcdServer) -> Iterator[Town]:
    made = Town(tmp_path, own_etcd.address)
    for number in range(20):
        made.put(f"a/{number}", 30_000 + number)
    yield made
    made.close()


def trouble(town: Town, host: Host) -> str:
    return str(town.status(host)["cluster"]["membership"]["trouble"])


def away(town: Town) -> Callable[[], bool]:
    return lambda: all("etcd has been unavailable" in trouble(town, host) for host in town.hosts)


def well(town: Town, count: int) -> Callable[[], bool]:
    return lambda: all(not trouble(town, host) and len(town.members(host)) == count for host in town.hosts)


def test_etcd_is_killed_and_started_again(town: Town, own_etcd: EtcdServer) -> None:
    town.start(3)
    town.hosts[0].assert_right()
    own_etcd.kill()
    town.wait_for(away(town))
    town.put("a/new", 40_000)
    for host in town.hosts:
        assert len(town.members(host)) == 3
        host.assert_right(*[f"a/{number}" for number in range(20)])
    done = town.hosts[0].headrace("mount", "add", "/x", town.truth)
    assert done.returncode == 32
    assert "Traceback" not in done.stderr
    own_etcd.start()
    town.wait_for(well(town, 3))
    town.hosts[1].ok("sync", town.hosts[1].mount)
    for host in town.hosts:
        host.assert_right()


def test_etcd_is_silent_for_longer_than_the_leases(town: Town, own_etcd: EtcdServer) -> None:
    town.start(2)
    own_etcd.signal(signal.SIGSTOP)
    try:
        town.wait_for(away(town))
        for host in town.hosts:
            host.assert_right()
        town.wait_for(
            lambda: all(town.status(host)["cluster"]["membership"]["etcd_away_s"] > 4 for host in town.hosts)
        )
        assert all(len(town.members(host)) == 2 for host in town.hosts)
    finally:
        own_etcd.signal(signal.SIGCONT)
    town.wait_for(well(town, 2))
    for host in town.hosts:
        host.assert_right()


def test_etcd_loses_its_data(town: Town, own_etcd: EtcdServer) -> None:
    town.start(2)
    extra = town.base / "extra"
    extra.mkdir()
    (extra / "x").write_bytes(b"x of extra")
    town.hosts[0].ok("mount", "add", "/extra", extra)
    town.wait_for(lambda: len(town.hosts[1].json("mount", "list")) == 2)
    own_etcd.kill()
    own_etcd.lose_data()
    town.wait_for(away(town))
    own_etcd.start()
    town.wait_for(well(town, 2))
    for host in town.hosts:
        assert host.headrace("cat", "/extra/x").stdout == "x of extra"
        host.assert_right()
    late = town.add()  # finds all there is
    town.up(late)
    town.wait_for(well(town, 3))
    town.wait_for(lambda: len(late.json("mount", "list")) == 2)
    assert late.headrace("cat", "/extra/x").stdout == "x of extra"


def test_a_node_that_was_killed_takes_its_place_again(town: Town) -> None:
    town.start(2)
    host = town.hosts[0]
    before = host.kill("node")  # `up` starts it again at once, with its old lease still there
    town.wait_for(lambda: host.pid_of("node") not in (0, before) and not host.headrace("status").returncode)
    town.wait_for(well(town, 2))
    for one in town.hosts:
        one.assert_right()


def test_a_node_that_dies_while_etcd_is_away_goes_by_its_last_view(town: Town, own_etcd: EtcdServer) -> None:
    town.start(2)
    host, other = town.hosts
    own_etcd.kill()
    town.wait_for(away(town))
    before = host.kill("node")
    town.wait_for(lambda: host.pid_of("node") not in (0, before) and not host.headrace("status").returncode)
    assert "not in the cluster" in trouble(town, host)
    assert "not in the cluster" in host.ok("status")
    assert not town.status(host)["cluster"]["membership"]["joined"]
    assert town.members(host) == ["n0", "n1"]
    host.assert_right()  # nothing of it was cached
    assert town.status(host)["peers"]["reads"] > 0
    other.assert_right()
    for words in (("load", "/a"), ("node", "drain"), ("mount", "add", "/x", town.truth)):
        done = host.headrace(*words)
        assert done.returncode == 32, done
        assert "Traceback" not in done.stderr
    own_etcd.start()
    town.wait_for(well(town, 2))
    assert town.status(host)["cluster"]["membership"]["joined"]
    town.put("a/new", 40_000)
    town.wait_for(lambda: other.headrace("sync", other.mount).returncode == 0)  # it reaches it again
    host.ok("load", "/a")
    for one in town.hosts:
        one.assert_right()
    assert "WARNING headrace.cluster.membership this node is not in the cluster" in log_of(host)


def log_of(host: Host) -> str:
    return "".join(path.read_text() for path in host.run_folder.glob("*.log"))


def test_without_etcd_a_node_does_not_start(tmp_path: Path, own_etcd: EtcdServer) -> None:
    town = Town(tmp_path, own_etcd.address)
    try:
        town.put("a", 5)
        own_etcd.kill()
        host = town.add()
        up = host.start("up", town.truth, host.mount, "--cache", f"{host.cache}:256MiB")
        assert up.wait() == 32
        assert "etcd" in up.said
        assert "Traceback" not in up.said
    finally:
        town.close()
