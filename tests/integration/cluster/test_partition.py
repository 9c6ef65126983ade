"""A writer is cut off from etcd, and reaches the other nodes and the origin all the time."""

from __future__ import annotations

import pytest

from headrace.testing.etcd import EtcdServer
from tests.integration.persist.conftest import Writer, settled, tree_of, wait_until

from .cluster_fixture import same, same_everywhere
from .conftest import UNREACHABLE, MakeCluster
from .tcp_link import tcp_link

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240)]
NEVER_S = 600


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_a_writer_that_only_etcd_misses_has_no_conflict_with_its_replica(
    make_cluster: MakeCluster, etcd: EtcdServer
) -> None:
    """A replica persists its files, while the writer goes on with the same files."""
    with tcp_link(etcd.address) as link:
        cluster = make_cluster(write="back:2", persist_delay_s=NEVER_S, take_over_s=1)
        cluster.put("low/a", 50_000)
        writer = cluster.add(cluster=f"etcd://{link.address}/{cluster.base.name}")
        others = [cluster.add(), cluster.add()]
        for host in cluster.hosts:
            cluster.up(host)
        cluster.wait_members(3)
        own = Writer(writer.mount)
        own.run("open('a', 'w').write('a')")
        own.run("os.mkdir('d'); open('d/large', 'wb').write(os.urandom(5_000_000))")
        own.run("open('low/a', 'ab').write(b'more')")
        link.cut()
        cluster.wait_members(2, others)
        expected = own.tree()
        for host in others:
            same(Writer(host.mount), expected)
        wait_until(lambda: tree_of(cluster.truth) == expected, 60)
        own.run("open('new', 'w').write('new')", limit_s=60)
        own.run("open('a', 'a').write(', and more')", limit_s=60)
        own.run("os.rename('d/large', 'd/moved')", limit_s=60)
        expected = own.tree()
        for host in others:
            same(Writer(host.mount), expected)
        link.heal()
        cluster.wait_members(3)
        own.run("open('a', 'a').write(', and still more'); os.unlink('new')", limit_s=60)
        expected = own.tree()
        assert expected["a"] == b"a, and more, and still more".hex()
        for host in others:
            same(Writer(host.mount), expected)
        settled(writer)
        assert tree_of(cluster.truth) == expected
        same_everywhere(cluster)
        assert all(cluster.status(host)["write"]["conflicts"] == [] for host in cluster.hosts)
