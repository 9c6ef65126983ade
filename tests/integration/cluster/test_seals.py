"""Seals in a cluster: each node seals for itself, and the origin sends each byte once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.cli.host import Host, wait_until

from .conftest import MakeCluster

FILES = 60
pytestmark = [pytest.mark.root, pytest.mark.timeout(110)]


def test_every_node_seals_what_the_origin_gave_once(make_cluster: MakeCluster) -> None:
    """Also when two nodes begin at one moment, and when the nodes end: each host reads its own copies."""
    cluster = make_cluster()
    for number in range(FILES):
        cluster.put(f"images/{number}.bin", 2000 + number * 331, seed=number)
    cluster.put("images/large", (9 << 20) + 5, seed=99)
    cluster.start(3)
    with ThreadPoolExecutor(3) as pool:
        rows = list(
            pool.map(lambda host: host.json("seal", host.mount / "images", "--in-place"), cluster.hosts)
        )
    assert len({row["id"] for row in rows}) == 1  # equal contents have equal ids on all hosts
    if not cluster.misses():
        assert cluster.origin() == cluster.truth_bytes()
    for host in cluster.hosts:
        host.assert_right()
    cluster.put("images/0.bin", 777, seed=7)
    host = cluster.hosts[0]
    host.ok("sync", "/")
    old = rows[0]
    new = host.json("seal", host.mount / "images", "--in-place")
    assert new["id"] != old["id"] and (host.mount / "images/0.bin").stat().st_size == 777
    assert (cluster.hosts[1].mount / "images/0.bin").stat().st_size == 2000  # it keeps its version
    host.json("seal", "verify", new["seal"])


def test_a_lazy_seal_borrows_from_the_other_nodes(make_cluster: MakeCluster) -> None:
    """Files that others own come through the layer, then lie on this host: they are read when the others are gone."""
    cluster = make_cluster()
    contents = {
        f"{number}.bin": cluster.put(f"images/{number}.bin", 2000 + number * 331, seed=number)
        for number in range(FILES)
    }
    cluster.start(2)
    first, second = cluster.hosts
    first.ok("load", "/")
    second.json("seal", second.mount / "images", "--in-place", "--lazy")
    second.assert_right()
    if not cluster.misses():
        assert cluster.origin() == cluster.truth_bytes()
    wait_until(lambda: _missing(second) == 0, hint=lambda: str(second.json("seal", "list")))
    first.kill_all()
    for name in contents:
        (cluster.truth / "images" / name).unlink()
    second.kill_all()
    sealed = second.base / "sealed"
    second.ok("seal", "mount", "images@1", "--at", sealed, "--cache", second.cache)
    assert {path.name: path.read_bytes() for path in sealed.iterdir()} == contents


def _missing(host: Host) -> int:
    (row,) = host.json("seal", "list")
    return int(row["missing"])
