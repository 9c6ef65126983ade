"""Claims of exclusive directories with certificates, while the holder is cut off from etcd, and broken under a live
holder. Each ends with the bytes at the origin."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.cluster.etcd import EtcdRecords
from headrace.testing.etcd import EtcdServer
from tests.certificates import authority, issued, settings_of
from tests.integration.cli.host import Host, wait_until
from tests.integration.persist.conftest import Writer, settled, tree_of

from .cluster_fixture import same
from .conftest import UNREACHABLE, MakeCluster
from .exclusive_nodes import LEASE_S, NEVER_S, OUT, claims, refused, wait_held
from .tcp_link import tcp_link

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(180)]
BROKEN = "the claim of this directory was broken"


def hexadecimal(**files: str) -> dict[str, str]:
    return {name: text.encode().hex() for name, text in files.items()}


def below_out(files: dict[str, str]) -> dict[str, str]:
    return {"out": "dir", **{f"out/{name}": data for name, data in files.items()}}


def write(host: Host, **files: str) -> None:
    for name, text in files.items():
        Writer(host.mount / "out").run(f"open({name!r}, 'w').write({text!r})")


@pytest.mark.expected_warnings("node did not start")
def test_claims_with_certificates(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = make_cluster(persist_delay_s=NEVER_S, lease_s=LEASE_S)
    signer = authority(tmp_path / "authority", tmp_path.name)

    def add(mode: str) -> Host:
        return cluster.add(**settings_of(issued(signer, f"n{len(cluster.hosts)}")), write=mode)

    holder, reader = add(OUT), add("off")
    cluster.up(holder)
    cluster.up(reader)
    cluster.wait_members(2)
    write(holder, f="first", g="second")
    same(
        Writer(reader.mount), below_out(hexadecimal(f="first", g="second"))
    )  # over TLS, before it is persisted
    other = add(OUT)
    assert "node n0 has claimed /out" in refused(cluster, other)
    done = reader.headrace("node", "break-claim", "/out")
    assert done.returncode == 2 and "node n0 is in the cluster" in done.stderr
    settled(holder)
    assert tree_of(cluster.truth / "out") == hexadecimal(f="first", g="second")
    Writer(holder.mount / "out").run("os.unlink('f'); os.unlink('g')")
    settled(holder)
    holder.ok("down")
    cluster.up(other)
    wait_held(other)
    write(other, h="third")
    same(Writer(reader.mount), below_out(hexadecimal(h="third")))
    settled(other)
    assert tree_of(cluster.truth / "out") == hexadecimal(h="third")


async def put_record(etcd: EtcdServer, cluster: str, record: bytes) -> None:
    records = EtcdRecords([etcd.address], prefix=f"/headrace/{cluster}/", lease_s=3)
    await records.start()
    assert await records.get("claims//out") is not None
    await records.put("claims//out", record)
    await records.close()


@pytest.mark.expected_warnings("refused interface=records")
def test_nobody_without_a_certificate_breaks_a_claim(
    make_cluster: MakeCluster, etcd: EtcdServer, tmp_path: Path
) -> None:
    """Whoever may write to etcd writes the record that break-claim writes, and a claim of another node."""
    cluster = make_cluster(persist_delay_s=0.05, lease_s=LEASE_S)
    signer = authority(tmp_path / "authority", tmp_path.name)
    holder = cluster.add(**settings_of(issued(signer, "n0")), write=OUT)
    cluster.up(holder)
    wait_held(holder)
    write(holder, f="first")
    settled(holder)
    for record in (b'{"node":"","token":"abc"}', b'{"node":"n9","token":"abc"}'):
        asyncio.run(put_record(etcd, tmp_path.name, record))
        wait_held(holder)
        write(holder, f=record.decode())
        settled(holder)
        assert tree_of(cluster.truth / "out") == hexadecimal(f=record.decode())


@pytest.mark.expected_warnings(
    *UNREACHABLE,
    "node did not start",
    "another writer changed a file at the origin",
    "the claim of an exclusive directory was broken",
    "an operator broke a claim",
)
def test_a_holder_that_is_cut_off_from_etcd_persists_nothing_and_loses_nothing(
    make_cluster: MakeCluster, etcd: EtcdServer
) -> None:
    """It reaches the origin all the time. Another node gets the directory meanwhile, and writes the same names."""
    with tcp_link(etcd.address) as link:
        cluster = make_cluster(persist_delay_s=0.05, lease_s=LEASE_S)
        holder = cluster.add(write=OUT, cluster=f"etcd://{link.address}/{cluster.base.name}")
        reader, other = cluster.add(write="off"), cluster.add(write=OUT)
        cluster.up(holder)
        cluster.up(reader)
        cluster.wait_members(2, [holder, reader])
        wait_held(holder)
        write(holder, f="before")
        settled(holder)
        link.cut()
        wait_until(lambda: "etcd is unavailable" in claims(holder)[0]["trouble"], 30)
        cluster.wait_members(1, [reader])
        write(holder, f="mine", g="mine, too")
        assert "node n0 has claimed /out" in refused(cluster, other)
        reader.ok("node", "break-claim", "/out")
        assert "/out/f among them" in refused(cluster, other)  # the holder had persisted it
        (cluster.truth / "out/f").unlink()
        cluster.up(other)
        wait_held(other)
        write(other, f="theirs")
        settled(other)
        assert tree_of(cluster.truth / "out") == hexadecimal(f="theirs")
        link.heal()
        wait_until(lambda: BROKEN in claims(holder)[0]["trouble"], 60)
        write(holder, h="after")
        assert tree_of(cluster.truth / "out") == hexadecimal(f="theirs")
        assert Writer(holder.mount / "out").tree() == hexadecimal(f="mine", g="mine, too", h="after")
        assert BROKEN in holder.ok("status")
        holder.ok("down")
        assert "node n2 has claimed /out" in refused(cluster, holder)
        Writer(other.mount / "out").run("os.unlink('f')")
        settled(other)
        other.ok("down")
        cluster.up(holder)
        wait_held(holder)
        settled(holder)
        kept = tree_of(cluster.truth / "out")
        (conflict,) = kept.keys() - {"g", "h"}  # the holder's version of what others replaced and removed
        assert conflict.startswith("f.conflict-")
        assert kept == hexadecimal(g="mine, too", h="after", **{conflict: "mine"})
        assert Writer(holder.mount / "out").tree() == kept
        assert [row["kept"] for row in holder.status()["write"]["conflicts"]] == [f"/out/{conflict}"]


@pytest.mark.expected_warnings("the claim of an exclusive directory was broken", "an operator broke a claim")
def test_a_claim_that_is_broken_under_a_live_holder_loses_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(persist_delay_s=0.05, lease_s=LEASE_S)
    holder, reader = cluster.add(write=OUT), cluster.add(write="off")
    cluster.up(holder)
    cluster.up(reader)
    cluster.wait_members(2)
    wait_held(holder)
    write(holder, f="before")
    settled(holder)
    assert "persists nothing there" in reader.ok("node", "break-claim", "/out", "--force")
    wait_until(lambda: BROKEN in claims(holder)[0]["trouble"], 30)
    write(holder, f="mine", g="mine, too")
    done = holder.headrace("persist", "/out")
    assert done.returncode != 0 and BROKEN in done.stderr
    assert tree_of(cluster.truth / "out") == hexadecimal(f="before")
    assert BROKEN in holder.ok("status")
    holder.ok("down")
    cluster.up(holder)
    wait_held(holder)
    settled(holder)
    assert tree_of(cluster.truth / "out") == hexadecimal(f="mine", g="mine, too")
    same(Writer(reader.mount), below_out(hexadecimal(f="mine", g="mine, too")))
