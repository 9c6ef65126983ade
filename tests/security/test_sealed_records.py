"""A user who can write to etcd makes no node and no mount: records are sealed by nodes of the cluster (finding 2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.membership import Membership
from headrace.identity import seals as sealing
from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.identity.seals import Seals
from headrace.ring.view import ClusterView, NodeInfo
from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.waiting import until
from tests.certificates import authority, issued, mutual

pytestmark = [
    pytest.mark.expected_warnings(
        "refused interface", "a node record was ignored", "a node record can't be decoded"
    ),
    pytest.mark.timeout(60),
    pytest.mark.uvloop,
]
MOUNT = b'{"url":"s3://training","options":{}}'
EVIL = b'{"url":"s3://evil","options":{}}'


@pytest.fixture
def lab(tmp_path: Path) -> Authority:
    return authority(tmp_path / "lab")


def seals(lab: Authority, name: str = "a") -> Seals:
    return Seals(mutual(lab, name))


def refused(by: Seals, key: str, raw: bytes) -> str:
    with pytest.raises(StrangerError) as caught:
        by.open(key, raw)
    return str(caught.value)


def strange(lab: Authority, name: str, **more: object) -> Seals:
    """Return the seals of a sender who accepts its own certificate, whatever that says."""
    tls = object.__new__(MutualTls)
    files = issued(lab, name, file=f"strange-{time.monotonic_ns()}", **more)  # type: ignore[arg-type]
    honest = mutual(lab, f"{name}-{time.monotonic_ns()}")
    tls.__dict__.update(honest.__dict__, _files=files)
    return Seals(tls)


def test_a_record_is_read_as_it_was_written(lab: Authority) -> None:
    writer, other = seals(lab, "a"), seals(lab, "b")
    sealed = writer.close("mounts/x", MOUNT)
    assert other.open("mounts/x", sealed) == writer.open("mounts/x", sealed) == MOUNT
    older = msgspec.json.decode(sealed)  # as one that knows of no seals reads it
    assert older["url"] == "s3://training" and set(older) == {"url", "options", "seal"}
    assert writer.may_close("nodes/a") and not writer.may_close("nodes/b") and writer.may_close("mounts/x")


def test_what_no_node_of_the_cluster_sealed_is_refused(lab: Authority, tmp_path: Path) -> None:
    me, node = seals(lab, "me"), seals(lab, "a")
    stranger = authority(tmp_path / "stranger")
    sealed = node.close("mounts/x", MOUNT)
    assert "no seal" in refused(me, "mounts/x", MOUNT)
    assert "signature is wrong" in refused(me, "mounts/x", sealed.replace(b"training", b"evil----"))
    assert "signature is wrong" in refused(me, "mounts/y", sealed)  # moved
    assert "sealed by node a" in refused(me, "nodes/b", node.close("nodes/b", MOUNT))
    assert "not trusted" in refused(me, "mounts/x", seals(stranger).close("mounts/x", MOUNT))
    for why, uri in (
        ("sealed by client", "headrace://lab/client/c"),
        ("sealed by service", "headrace://lab/service/c"),
        ("of cluster other", "headrace://other/node/c"),
        ("no names", "https://c.example/"),
    ):
        assert why in refused(me, "mounts/x", strange(lab, "c", uri=uri).close("mounts/x", MOUNT))
    ended = strange(lab, "c", days=-0.001).close("mounts/x", MOUNT)
    assert "not trusted" in refused(me, "mounts/x", ended)
    assert me.open("mounts/x", sealed) == MOUNT


def test_what_was_there_before_is_refused(lab: Authority) -> None:
    me, node = seals(lab, "me"), seals(lab, "a")
    first = node.close("mounts/x", MOUNT)
    second = node.close("mounts/x", EVIL)
    assert me.open("mounts/x", first) == me.open("mounts/x", first) == MOUNT
    assert me.open("mounts/x", second) == EVIL
    assert "older" in refused(me, "mounts/x", first)
    slow = seals(lab, "slow")  # its clock is an hour behind
    slow.open("mounts/x", second, newest=False)
    with pytest.MonkeyPatch.context() as patch:
        now_ns = time.time_ns()
        patch.setattr(time, "time_ns", lambda: now_ns - 3600 * 10**9)
        third = slow.close("mounts/x", MOUNT)
    assert me.open("mounts/x", third) == MOUNT


def test_a_seal_ends_with_its_certificate(lab: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    me, node = seals(lab, "me"), seals(lab, "a")
    sealed = node.close("mounts/x", MOUNT)
    me.open("mounts/x", sealed)
    assert not me.is_aging(sealed)
    longer = Seals(MutualTls(issued(lab, "long", days=3)))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 0.8 * 86400)
    assert longer.is_aging(sealed) and not me.is_aging(sealed)
    monkeypatch.setattr(time, "time", lambda: real() + 1.1 * 86400)
    assert "has expired" in refused(me, "mounts/x", sealed)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Seals:
    return seals(authority(tmp_path_factory.mktemp("shared") / "lab"))


@pytest.fixture(scope="module")
def sealed(shared: Seals) -> bytes:
    return shared.close("mounts/fuzz", MOUNT)


@examples(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_bytes_are_a_record_or_refused(shared: Seals, sealed: bytes, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["any", "cut", "changed", "seal"]))
    if kind == "any":
        raw = data.draw(st.binary(max_size=400))
    elif kind == "cut":
        raw = sealed[: data.draw(st.integers(0, 700))]
    elif kind == "changed":
        place = data.draw(st.integers(0, 700))
        raw = sealed[:place] + data.draw(st.binary(min_size=1, max_size=3)) + sealed[place + 1 :]
    else:
        seal = data.draw(
            st.fixed_dictionaries(
                {
                    "at_ns": st.integers() | st.none(),
                    "certificate": st.lists(st.binary(max_size=50), max_size=6),
                    "signature": st.binary(max_size=80) | st.text(max_size=9),
                }
            )
        )
        raw = MOUNT[:-1] + b',"seal":' + msgspec.json.encode(seal) + b"}"
    try:
        assert shared.open("mounts/fuzz", raw, newest=False) == MOUNT
    except StrangerError:
        return
    assert kind == "changed"  # into the same, or bytes of base64 that mean the same


def test_a_record_too_long_is_refused(shared: Seals) -> None:
    raw = shared.close("mounts/x", b'{"url":"' + b"x" * sealing.RECORD_BYTES_MAX + b'"}')
    assert "no seal" in refused(shared, "mounts/x", raw)


# ---------------------------------------------------------------- in etcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


def records(etcd: EtcdServer, prefix: str, by: Seals | None) -> EtcdRecords:
    return EtcdRecords([etcd.address], prefix=f"/seals/{prefix}/", lease_s=3, seals=by)


def info(id: str, capacity_bytes: int = 1 << 30) -> NodeInfo:
    return NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", capacity_bytes, "0", 1)


@pytest.mark.server("etcd")
async def test_records_that_nodes_did_not_write_change_nothing(
    etcd: EtcdServer, lab: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    writer, other = records(etcd, "forged", seals(lab, "a")), records(etcd, "forged", seals(lab, "b"))
    attacker = records(etcd, "forged", None)
    for node in (writer, other, attacker):
        await node.start()
    changes: list[tuple[str, bytes | None]] = []
    await other.follow("mounts/", lambda key, value: changes.append((key, value)))
    await writer.put("mounts/x", MOUNT)
    first = await attacker.get("mounts/x")
    assert first is not None and await writer.replace("mounts/x", MOUNT, EVIL)
    assert await writer.replace("mounts/x", EVIL, MOUNT) and not await writer.replace("mounts/x", EVIL, EVIL)
    await until(lambda: changes.count(("mounts/x", MOUNT)) >= 2)
    before = list(changes)
    for forged in (EVIL, b"", b"nonsense", first, first.replace(b"training", b"evil----")):
        await attacker.put("mounts/x", forged)
    for number in range(50):
        await attacker.put(f"mounts/{number}", EVIL)
    await attacker.put("mounts/new", EVIL)
    await attacker.put("mounts/moved", first)
    await writer.put("mounts/end", MOUNT)
    await until(lambda: changes[-1:] == [("mounts/end", MOUNT)])
    assert changes == [*before, ("mounts/end", MOUNT)]
    assert await other.list("mounts/") == {"mounts/x": MOUNT, "mounts/end": MOUNT}
    assert await writer.get("mounts/new") == b""  # there is something, and nobody believes it
    assert not await writer.create("mounts/new", MOUNT)
    assert await writer.replace("mounts/new", b"", MOUNT)
    assert await other.get("mounts/new") == MOUNT
    for node in (writer, other, attacker):
        await node.close()
    lines = [
        record.getMessage() for record in caplog.records if "refused interface=records" in record.getMessage()
    ]
    assert any("no seal" in line for line in lines) and any("older" in line for line in lines)
    assert len(lines) <= 8  # two nodes, and one line for each reason


@pytest.mark.server("etcd")
async def test_a_rogue_node_owns_nothing(etcd: EtcdServer, lab: Authority) -> None:
    """`nodes/rogue` with a capacity of 2^50 became the owner of nearly all files."""

    async def alive(_: NodeInfo) -> bool:
        return False

    attacker = records(etcd, "rogue", None)
    await attacker.start()
    await attacker.put("nodes/rogue", msgspec.json.encode(info("rogue", 1 << 50)))
    await attacker.put("nodes/a", msgspec.json.encode(info("a", 1 << 50)))  # in the place of one to come
    views: list[ClusterView] = []
    members = [
        Membership(records(etcd, "rogue", seals(lab, id)), info(id), on_view=views.append, is_alive=alive)
        for id in ("a", "b")
    ]
    for member in members:
        await member.start()
    client = seals(lab, "c")
    await attacker.put("nodes/d", client.close("nodes/d", msgspec.json.encode(info("d"))))
    await attacker.put("nodes/c", client.close("nodes/c", msgspec.json.encode(info("d"))))
    await attacker.put("nodes/c", client.close("nodes/c", msgspec.json.encode(info("c"))))
    await until(lambda: views and set(views[-1].nodes) == {"a", "b", "c"})
    assert all(node.capacity_bytes == 1 << 30 for view in views for node in view.nodes.values())
    assert all(set(view.nodes) <= {"a", "b", "c"} for view in views)
    for member in members:
        await member.stop()
    await attacker.close()


@pytest.mark.server("etcd")
async def test_records_are_sealed_again_before_their_seal_ends(
    etcd: EtcdServer, lab: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount outlives the certificate of the node that attached it."""
    monkeypatch.setattr("headrace.cluster.etcd.RESEAL_S", 0.0)
    monkeypatch.setattr("headrace.cluster.etcd.CHECK_S", 0.05)
    short = Seals(MutualTls(issued(lab, "short", days=0.001)))  # not_before is 5 minutes ago: past its half
    writer, other = records(etcd, "again", short), records(etcd, "again", seals(lab, "b"))
    plain = records(etcd, "again", None)
    await plain.start()
    await writer.start()
    await writer.put("mounts/x", MOUNT)
    await writer.put("nodes/short", MOUNT)
    before = await plain.get("mounts/x")
    await writer.close()
    kept = await plain.get("nodes/short")
    await other.start()
    while await plain.get("mounts/x") == before:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    assert await other.get("mounts/x") == MOUNT
    assert await plain.get("nodes/short") == kept  # nobody else's to seal
    await other.close()
    await plain.close()


@pytest.mark.server("etcd")
@pytest.mark.expected_warnings("this node's record was deleted")
async def test_a_record_that_came_while_the_clock_was_slow_is_followed_later(
    etcd: EtcdServer, lab: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that joined then was no member for this one, until something broke the watch.

    The writer has the slow clock, too, as it is of this process. If it looks after its record meanwhile, as on a busy
    machine, it refuses its own seal."""
    monkeypatch.setattr("headrace.cluster.etcd.RESEAL_S", 0.0)
    monkeypatch.setattr("headrace.cluster.etcd.CHECK_S", 0.05)
    writer, slow = records(etcd, "slow", seals(lab, "a")), records(etcd, "slow", seals(lab, "b"))
    heard: dict[str, bytes | None] = {}
    await writer.start()
    await slow.start()
    await slow.follow("nodes/", heard.__setitem__)
    # only for seals: grpc computes its deadlines by this clock
    clock = SimpleNamespace(time=lambda: time.time() - 3600, time_ns=time.time_ns)
    monkeypatch.setattr("headrace.identity.seals.time", clock)
    await writer.put("nodes/a", MOUNT, leased=True)
    await until(lambda: slow._beliefs.held("nodes/a") is not None)
    assert heard == {}
    monkeypatch.setattr("headrace.identity.seals.time", time)
    await until(lambda: heard == {"nodes/a": MOUNT})
    await writer.close()
    await until(lambda: heard == {"nodes/a": None})
    await slow.close()
