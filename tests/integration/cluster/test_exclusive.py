"""Exclusive directories in a cluster: one node has one, the others see its names, and nobody takes it while the node is
dead or cut off."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from headrace.cluster.etcd import EtcdRecords
from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.writeback.coherence.directory_claims import ClaimRecord
from tests.integration.cli.host import Host, wait_until
from tests.integration.persist.conftest import Writer, settled, tree_of

from .cluster_fixture import ClusterFixture, same
from .conftest import UNREACHABLE, MakeCluster
from .exclusive_nodes import LEASE_S, NEVER_S, OUT, claims, held, refused, wait_held

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]


def holder_of(cluster: ClusterFixture) -> Host:
    """Start a node that has /out, and one that only reads; they see each other on return."""
    holder = cluster.add(write=OUT)
    cluster.up(holder)
    cluster.up(cluster.add(write="off"))
    cluster.wait_members(2)
    return holder


def test_others_see_names_and_bytes_that_are_not_persisted(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(persist_delay_s=NEVER_S)
    first = Writer(holder_of(cluster).mount)
    second = Writer(cluster.hosts[1].mount)
    for step in (
        "open('out/new', 'wb').write(os.urandom(30_000)); os.makedirs('out/d/e')",
        "open('out/d/e/large', 'wb').write(os.urandom(3_000_000)); open('out/new', 'ab').write(b'more')",
        "os.rename('out/d', 'out/moved'); os.rename('out/new', 'out/moved/newer')",
    ):
        first.run(step)
        same(second, first.tree())
    assert not (cluster.truth / "out").exists() or tree_of(cluster.truth / "out") == {}
    settled(cluster.hosts[0])
    assert tree_of(cluster.truth) == first.tree()
    first.run(
        "import shutil; os.unlink('out/moved/newer'); shutil.rmtree('out/moved/e'); open('out/last', 'w')"
    )
    same(second, {"out": "dir", "out/moved": "dir", "out/last": ""})
    assert "out/moved/newer" in tree_of(cluster.truth)
    settled(cluster.hosts[0])
    assert tree_of(cluster.truth) == {"out": "dir", "out/moved": "dir", "out/last": ""}
    same(second, tree_of(cluster.truth))


@pytest.mark.expected_warnings("node did not start")
def test_a_second_node_is_refused_until_the_first_has_stopped(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(persist_delay_s=NEVER_S)
    holder = holder_of(cluster)
    Writer(holder.mount).run("open('out/f', 'w').write('f')")
    other, writer = cluster.add(write=OUT), cluster.add(write="back")
    assert "node n0 has claimed /out (stop that node" in refused(cluster, other)
    assert "node n0 has claimed the directory /out (add /out=off" in refused(cluster, writer)
    holder.ok("down")
    assert "node n0 has claimed /out" in refused(cluster, other)  # it has files that are not persisted
    cluster.up(holder)
    Writer(holder.mount).run("os.unlink('out/f')")
    settled(holder)
    holder.ok("down")
    cluster.up(other)
    wait_held(other)
    Writer(other.mount).run("open('out/g', 'w').write('g')")
    settled(other)
    assert tree_of(cluster.truth / "out") == {"g": b"g".hex()}
    other.ok("down")
    assert "/out/g among them" in refused(cluster, holder)
    cluster.up(other)


@pytest.mark.expected_warnings(*UNREACHABLE, "node did not start", "an operator broke a claim")
def test_a_dead_holder_keeps_its_directory_until_an_operator_breaks_the_claim(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(persist_delay_s=NEVER_S, lease_s=LEASE_S)
    holder = holder_of(cluster)
    reader, other = cluster.hosts[1], cluster.add(write=OUT)
    Writer(holder.mount).run("open('out/f', 'w').write('unpersisted')")
    done = reader.headrace("node", "break-claim", "/out")
    assert done.returncode == 2 and "node n0 is in the cluster" in done.stderr
    holder.kill_all()
    cluster.wait_members(1, [reader])
    assert "node n0 has claimed /out" in refused(cluster, other)
    cluster.up(holder)
    wait_held(holder)
    assert Writer(holder.mount / "out").tree() == {"f": b"unpersisted".hex()}
    holder.kill_all()
    cluster.wait_members(1, [reader])
    assert "/out" in reader.ok("node", "break-claim", "/out")
    done = reader.headrace("node", "break-claim", "/out")
    assert done.returncode == 2 and "no node has claimed" in done.stderr
    cluster.up(other)
    wait_held(other)
    assert Writer(other.mount / "out").tree() == {}
    Writer(other.mount / "out").run("open('f', 'w').write('theirs')")
    settled(other)
    assert "node n2 has claimed /out" in refused(cluster, holder)
    other.ok("down")
    assert "/out/f among them" in refused(cluster, holder)  # what it has is another file
    assert tree_of(cluster.truth / "out") == {"f": b"theirs".hex()}
    assert (holder.cache / "upper/tree/out/f").read_text() == "unpersisted"


@pytest.mark.expected_warnings(*UNREACHABLE)
def test_without_etcd_programs_write_on_and_nothing_is_persisted(make_cluster: MakeCluster) -> None:
    """Longer than the node's lease. A node that is killed meanwhile starts again, and waits."""
    with etcd_server() as own:
        cluster = make_cluster(server=own, persist_delay_s=0.05, lease_s=LEASE_S)
        holder = holder_of(cluster)
        Writer(holder.mount).run("open('out/before', 'w').write('before')")
        wait_until(lambda: (cluster.truth / "out/before").exists(), 15)
        own.kill()
        wait_until(lambda: "etcd is unavailable" in claims(holder)[0]["trouble"], 20)
        Writer(holder.mount / "out").run("open('f', 'w').write('f'); os.rename('before', 'after')")
        pid = holder.kill("node")
        holder.wait_pid("node", other_than=pid)
        wait_until(lambda: claims(holder)[0]["trouble"] != "", 20)
        Writer(holder.mount / "out").run("open('g', 'w').write('g')")
        time.sleep(1.0)  # twenty times the delay after which a change is persisted
        assert set(tree_of(cluster.truth / "out")) == {"before"}
        own.start()
        wanted = {"f": b"f".hex(), "g": b"g".hex(), "after": b"before".hex()}
        wait_until(lambda: held(holder), 30)
        wait_until(lambda: tree_of(cluster.truth / "out") == wanted, 60)
        same(Writer(cluster.hosts[1].mount / "out"), wanted)


@pytest.mark.expected_warnings(*UNREACHABLE, "node did not start")
def test_a_claim_survives_the_loss_of_all_that_etcd_has(make_cluster: MakeCluster) -> None:
    with etcd_server() as own:
        cluster = make_cluster(server=own, persist_delay_s=0.05, lease_s=LEASE_S)
        holder = holder_of(cluster)
        lose(own)
        cluster.wait_members(2)
        wait_until(lambda: claimant(own, cluster) == "n0", 60)  # first: it may hold it from before the loss
        wait_until(lambda: held(holder), 60)
        assert "node n0 has claimed /out" in refused(cluster, cluster.add(write=OUT))
        Writer(holder.mount / "out").run("open('f', 'w').write('f')")
        wait_until(lambda: tree_of(cluster.truth / "out") == {"f": b"f".hex()}, 60)


@pytest.mark.expected_warnings(
    *UNREACHABLE, "the lease was lost", "the claim of an exclusive directory was broken"
)
def test_a_holder_stops_when_another_node_claims_first_after_etcd_lost_its_data(
    make_cluster: MakeCluster,
) -> None:
    """The holder is suspended, so that it can't write its claim again in time."""
    with etcd_server() as own:
        cluster = make_cluster(server=own, persist_delay_s=0.05, lease_s=LEASE_S)
        holder, other = holder_of(cluster), cluster.add(write=OUT)
        holder.kill("node", signal.SIGSTOP)
        try:
            lose(own)
            cluster.up(other)
            wait_held(other)
        finally:
            holder.kill("node", signal.SIGCONT)
        wait_until(lambda: "was broken, node n2 has it now" in claims(holder)[0]["trouble"], 60)
        Writer(holder.mount / "out").run("open('f', 'w').write('kept')")
        Writer(other.mount / "out").run("open('g', 'w').write('theirs')")
        settled(other)
        assert tree_of(cluster.truth / "out") == {"g": b"theirs".hex()}
        assert claimant(own, cluster) == "n2"
        assert (holder.cache / "upper/tree/out/f").read_text() == "kept"


def lose(server: EtcdServer) -> None:
    server.kill()
    server.lose_data()
    server.start()


def claimant(server: EtcdServer, cluster: ClusterFixture) -> str:
    """Return the node that etcd's record of /out names; "" for none."""

    async def read() -> bytes | None:
        records = EtcdRecords([server.address], prefix=f"/headrace/{cluster.base.name}/", lease_s=LEASE_S)
        await records.start()
        try:
            return await records.get("claims//out")
        finally:
            await records.close()

    raw = asyncio.run(read())
    return "" if raw is None else ClaimRecord.decode(raw).node


def test_local_exclusive_directories_need_no_claim(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(write="off,/scratch=local,exclusive")
    cluster.start(2)
    for host in cluster.hosts:
        Writer(host.mount / "scratch").run("open('f', 'x').write(os.getcwd())")
        assert claims(host) == []
    assert tree_of(cluster.truth) == {}
