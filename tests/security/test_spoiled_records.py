"""Somebody who can write to etcd forges, replays and removes records of all kinds; nodes go on by what was sealed
(finding 2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.etcd import EtcdRecords
from headrace.cluster.kept_records import Kept, KeptRecords
from headrace.cluster.membership import Membership
from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.identity.record_kinds import kind_of
from headrace.identity.seals import ENDED, Mark, Seals
from headrace.ring.view import ClusterView, NodeInfo
from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.virtual_loop import run_virtual
from headrace.testing.waiting import until
from headrace.writeback.replication.failover import Failover, _Run
from headrace.writeback.replication.placement import ReplicaSetRecords
from tests.certificates import authority, issued

pytestmark = [
    pytest.mark.expected_warnings(
        "refused interface",
        "the kept records can't be read",
        "this node's record was deleted",
        "replicated files of a node that left",
    ),
    pytest.mark.timeout(60),
    pytest.mark.uvloop,
]
OBJECT = b'{"a":1}'
LIST = b'["b","c"]'
OF_NODE = ("nodes/a", "written/a", "copies/a", "jobs/7/parts/a")
OF_ALL = ("mounts/data", "mounts/", "pins/data", "jobs/7")


def value_of(key: str) -> bytes:
    return LIST if key.startswith("copies/") else OBJECT


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("lab") / "authority")


_numbers = iter(range(1 << 30))


def seals(lab: Authority, name: str = "a", *, role: str = "node", days: float = 1) -> Seals:
    return Seals(MutualTls(issued(lab, name, role=role, days=days, file=f"seals-{next(_numbers)}")))


def refused(by: Seals, key: str, raw: bytes) -> str:
    with pytest.raises(StrangerError) as caught:
        by.open(key, raw)
    return str(caught.value)


# ---------------------------------------------------------------- who may seal what


@pytest.mark.parametrize("key", OF_NODE)
def test_a_record_of_a_node_is_sealed_by_that_node(lab: Authority, key: str) -> None:
    me, owner, other = seals(lab, "me"), seals(lab, "a"), seals(lab, "b")
    assert owner.may_close(key) and not other.may_close(key)
    assert me.open(key, owner.close(key, value_of(key))) == value_of(key)
    assert "sealed by node b" in refused(me, key, other.close(key, value_of(key)))
    for role in ("operator", "client", "service"):
        assert f"sealed by {role} a" in refused(me, key, seals(lab, "a", role=role).close(key, value_of(key)))
    assert "no seal" in refused(me, key, value_of(key))


@pytest.mark.parametrize("key", OF_ALL)
def test_what_all_nodes_follow_is_sealed_by_nodes_and_operators(lab: Authority, key: str) -> None:
    me = seals(lab, "me")
    for name, role in (("b", "node"), ("jo", "operator")):
        writer = seals(lab, name, role=role)
        assert writer.may_close(key)
        assert me.open(key, writer.close(key, OBJECT)) == OBJECT
    for role in ("client", "service"):
        assert f"sealed by {role} jo" in refused(me, key, seals(lab, "jo", role=role).close(key, OBJECT))
    assert "no seal" in refused(me, key, OBJECT)


def test_what_is_written_of_a_node_that_is_gone_another_node_ends(lab: Authority) -> None:
    me, other = seals(lab, "me"), seals(lab, "b")
    me.open("written/a", seals(lab, "a").close("written/a", OBJECT))
    assert me.open("written/a", other.close("written/a", ENDED)) == ENDED
    for key in ("nodes/a", "jobs/7/parts/a"):
        assert "sealed by node b" in refused(me, key, other.close(key, ENDED))
    operator = seals(lab, "jo", role="operator")
    assert "sealed by operator jo" in refused(me, "written/a", operator.close("written/a", ENDED))


def test_a_claim_is_sealed_by_nodes_only(lab: Authority) -> None:
    me, key = seals(lab, "me"), "claims//out"
    assert me.open(key, seals(lab, "b").close(key, OBJECT)) == OBJECT
    for role in ("operator", "client", "service"):
        assert f"sealed by {role} jo" in refused(me, key, seals(lab, "jo", role=role).close(key, OBJECT))
    assert "no seal" in refused(me, key, OBJECT)


def test_a_key_of_no_kind_is_neither_written_nor_believed(lab: Authority) -> None:
    me = seals(lab)
    for key in ("else/x", "nodes", "nodes/", "jobs/", "jobs/7/parts/", "", "mountains/x", "mounts"):
        assert kind_of(key) is None
        assert "no record has such a key" in refused(me, key, OBJECT)
        with pytest.raises(ValueError, match="no kind"):
            me.close(key, OBJECT)


def test_a_record_that_was_taken_away_is_not_believed_again(lab: Authority) -> None:
    me, node = seals(lab, "me"), seals(lab)
    first = node.close("nodes/a", OBJECT)
    assert me.open("nodes/a", first) == OBJECT
    me.gone("nodes/a")
    assert "older" in refused(me, "nodes/a", first)
    later = seals(lab, "me")
    later.remember(me.marks())  # the next run
    assert "older" in refused(later, "nodes/a", first)
    node.open("nodes/a", first)
    assert later.open("nodes/a", node.close("nodes/a", OBJECT)) == OBJECT


def test_marks_end_with_the_seals_that_they_are_of(lab: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    me = seals(lab, "me")
    me.open("nodes/a", seals(lab).close("nodes/a", OBJECT))
    me.forget_old()
    kept = me.marks()
    assert set(kept) == {"nodes/a"}
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 2 * 86400)
    me.forget_old()
    later = Seals(MutualTls(issued(lab, "later", days=9, file="later")))
    later.remember(kept)
    assert me.marks() == later.marks() == {}


# ---------------------------------------------------------------- in etcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_server() as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.etcd.CHECK_S", 0.05)
    monkeypatch.setattr("headrace.cluster.beliefs.PUT_BACK_AGAIN_S", 0.0)


class SpoiledRecordsFixture:
    """Nodes with their seals and tables, and an attacker who has access to etcd only."""

    def __init__(self, etcd: EtcdServer, lab: Authority, prefix: str, folder: Path) -> None:
        self._etcd, self._lab, self._folder = etcd, lab, folder
        self._prefix = f"/spoiled/{prefix}/"
        self._open: list[EtcdRecords] = []
        self.attacker = self._records(None, None)

    def _records(self, seals: Seals | None, kept: KeptRecords | None) -> EtcdRecords:
        records = EtcdRecords([self._etcd.address], prefix=self._prefix, lease_s=3, seals=seals, kept=kept)
        self._open.append(records)
        return records

    async def begin(self) -> None:
        await self.attacker.start()

    def records_of(self, name: str, days: float = 1) -> EtcdRecords:
        """Return the records of one run of a node: the next one has the same table."""
        kept = KeptRecords(str(self._folder / f"{name}.db"))
        return self._records(seals(self._lab, name, days=days), kept)

    async def node(self, name: str, days: float = 1) -> EtcdRecords:
        records = self.records_of(name, days)
        await records.start()
        return records

    async def end(self) -> None:
        for records in self._open:
            await records.close()


LASTING = {"mounts/x": OBJECT, "pins/x": OBJECT, "claims//x": OBJECT, "written/a": OBJECT, "copies/a": LIST}


@pytest.mark.server("etcd")
async def test_what_lasts_is_neither_taken_away_nor_changed(
    etcd: EtcdServer, lab: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = SpoiledRecordsFixture(etcd, lab, "lasting", tmp_path)
    await scene.begin()
    node, other = await scene.node("a"), await scene.node("b")
    heard: list[tuple[str, bytes | None]] = []
    for key, value in LASTING.items():
        await node.put(key, value)
    sealed = await scene.attacker.list("")
    await other.follow("", lambda key, value: heard.append((key, value)))
    await until(lambda: dict(heard) == LASTING)
    for key in LASTING:
        await scene.attacker.delete(key)
        assert await other.get(key) == LASTING[key]
        await until(lambda key=key: same(scene.attacker, key, sealed[key]))  # type: ignore[misc]
        await scene.attacker.put(key, b'["b"]')
        assert await other.get(key) == LASTING[key]
        await until(lambda key=key: same(scene.attacker, key, sealed[key]))  # type: ignore[misc]
    assert await other.list("") == LASTING
    assert len(heard) == len(LASTING)
    await node.delete("written/a")  # by who may
    await until(lambda: ("written/a", None) in heard)
    assert await other.get("written/a") is None and "written/a" not in await other.list("written/")
    ended = await scene.attacker.get("written/a") or b""
    await scene.attacker.put("written/a", sealed["written/a"])
    assert await other.get("written/a") is None
    await until(lambda: same(scene.attacker, "written/a", ended))
    await node.put("written/a", OBJECT)
    assert await other.get("written/a") == OBJECT
    await scene.end()
    lines = [record.getMessage() for record in caplog.records]
    assert any("refused interface=records address=copies:a" in line and "no seal" in line for line in lines)
    assert any("address=copies:a" in line and "is restored" in line for line in lines)


async def same(records: EtcdRecords, key: str, raw: bytes) -> bool:
    return await records.get(key) == raw


@pytest.mark.server("etcd")
async def test_a_node_that_starts_is_shown_no_older_record(
    etcd: EtcdServer, lab: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that was removed, or another one, is not there again because all nodes were away."""
    scene = SpoiledRecordsFixture(etcd, lab, "rollback", tmp_path)
    await scene.begin()
    node = await scene.node("a")
    heard: dict[str, bytes | None] = {}
    await node.follow("", heard.__setitem__)
    before: dict[str, bytes] = {}
    for key in ("mounts/x", "mounts/y", "jobs/7", "jobs/8"):
        await node.put(key, OBJECT)
        before[key] = await scene.attacker.get(key) or b""
        await node.put(key, b'{"a":2}')
    await node.delete("jobs/7")
    wanted = {"mounts/x": b'{"a":2}', "mounts/y": b'{"a":2}', "jobs/7": None, "jobs/8": b'{"a":2}'}
    await until(lambda: heard == wanted)
    await node.close()
    for key in ("mounts/x", "jobs/7"):
        await scene.attacker.put(key, before[key])
    last = await scene.attacker.get("jobs/8") or b""
    for key in ("mounts/y", "jobs/8"):
        await scene.attacker.delete(key)
    caplog.clear()
    again = await scene.node("a")
    await scene.attacker.put("jobs/8", last)  # the one that it knew, but it was gone meanwhile
    assert await again.list("") == {"mounts/x": b'{"a":2}', "mounts/y": b'{"a":2}'}
    assert not await again.get("jobs/7") and not await again.get("jobs/8")
    # and it tells the others, who never knew better
    await until(lambda: knows(scene.attacker, "mounts/y"))
    fresh = await scene.node("fresh")
    await until(lambda: holds(fresh, {"mounts/x": b'{"a":2}', "mounts/y": b'{"a":2}', "jobs/7": OBJECT,
                                     "jobs/8": b'{"a":2}'}))  # fmt: skip
    await scene.end()
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert sum("address=mounts:x" in line and "older" in line for line in lines) == 1, lines


@pytest.mark.server("etcd")
async def test_what_a_node_believed_outlives_its_seal_while_all_nodes_are_away(
    etcd: EtcdServer, lab: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sealed anew by the first node that knows it; of who does not know it, nothing is believed."""
    real = time.time
    scene = SpoiledRecordsFixture(etcd, lab, "outlived", tmp_path)
    await scene.begin()
    node = await scene.node("a")
    heard: dict[str, bytes | None] = {}
    await node.follow("", heard.__setitem__)
    for key in ("mounts/x", "pins/x"):
        await node.put(key, OBJECT)
    await until(lambda: len(heard) == 2)
    await node.close()
    await scene.attacker.put("mounts/other", await scene.attacker.get("mounts/x") or b"")
    monkeypatch.setattr(time, "time", lambda: real() + 2 * 86400)
    fresh = await scene.node("fresh", days=9)
    assert await fresh.list("") == {}
    again = await scene.node("a", days=9)
    assert await again.list("") == {"mounts/x": OBJECT, "pins/x": OBJECT}
    await until(lambda: holds(fresh, {"mounts/x": OBJECT, "pins/x": OBJECT}))
    await scene.end()


async def holds(records: EtcdRecords, expected: dict[str, bytes]) -> bool:
    return await records.list("") == expected


async def knows(records: EtcdRecords, key: str) -> bool:
    return await records.get(key) is not None


def info(id: str) -> NodeInfo:
    return NodeInfo(id, f"run-{id}", "127.0.0.1:1", "", 1 << 30, "0", 1)


@pytest.mark.server("etcd")
async def test_a_node_that_was_removed_does_not_come_back_by_its_record(
    etcd: EtcdServer, lab: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def alive(_: NodeInfo) -> bool:
        return False

    scene = SpoiledRecordsFixture(etcd, lab, "removed", tmp_path)
    await scene.begin()
    gone = await scene.node("gone")
    await gone.put("nodes/gone", msgspec.json.encode(info("gone")), leased=True)
    record = await scene.attacker.get("nodes/gone") or b""
    for turn in ("this-run", "the-next-run"):
        views: list[ClusterView] = []
        me = Membership(scene.records_of("me"), info("me"), on_view=views.append, is_alive=alive)
        await me.start()
        if turn == "this-run":
            await until(lambda: "gone" in views[-1].nodes)  # noqa: B023 - it is awaited here
            await gone.close()
            await until(lambda: "gone" not in views[-1].nodes)  # noqa: B023 - it is awaited here
            await scene.attacker.put("nodes/gone", record)
        late = await scene.node(turn)
        await late.put(f"nodes/{turn}", msgspec.json.encode(info(turn)), leased=True)
        await until(lambda: turn in views[-1].nodes)  # noqa: B023 - it is awaited here
        assert "gone" not in views[-1].nodes, turn
        await me.stop()
    await scene.end()
    lines = [record.getMessage() for record in caplog.records if "address=nodes:gone" in record.getMessage()]
    assert lines and all("older" in line for line in lines), lines


@pytest.mark.server("etcd")
async def test_a_node_whose_own_record_is_spoiled_writes_it_again(
    etcd: EtcdServer, lab: Authority, tmp_path: Path
) -> None:
    """And one whose record is spoiled when it dies is gone all the same."""
    scene = SpoiledRecordsFixture(etcd, lab, "own", tmp_path)
    await scene.begin()
    node, other = await scene.node("a"), await scene.node("b")
    heard: list[bytes | None] = []
    await other.follow("nodes/a", lambda _, value: heard.append(value))
    await node.put("nodes/a", OBJECT, leased=True)
    await until(lambda: heard == [OBJECT])
    await scene.attacker.put("nodes/a", b"{}")
    await until(lambda: heard == [OBJECT, None, OBJECT])
    assert node.leases_lost == 1
    await node._tasks.close()
    await scene.attacker.put("nodes/a", b"{}")  # without the lease: nothing takes it away
    await until(lambda: heard == [OBJECT, None, OBJECT, None])
    await scene.end()


def test_a_table_that_is_none_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "records.db"
    kept = KeptRecords(str(path))
    mark = Mark(5, b"s", 1e10)
    for spoiled in (b"nonsense", b"SQLite format 3\0" + b"\xff" * 5000):
        path.write_bytes(spoiled)
        assert kept.read() == {}
        kept.write({"mounts/\udcff": Kept(mark, b"raw")})
        assert kept.read() == {"mounts/\udcff": Kept(mark, b"raw")}
        assert path.stat().st_mode & 0o777 == 0o600
    kept.write({}, ["mounts/\udcff"])
    assert kept.read() == {}
    assert sum("are discarded" in record.getMessage() for record in caplog.records) == 2


# ---------------------------------------------------------------- what follows from it


class _Keeper:
    """Copies of one writer, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = asyncio.Lock()

    def writers(self) -> list[str]:
        return ["a"]

    def folder_of(self, _: str) -> str:
        return str(self._folder)

    def lock_of(self, _: str) -> asyncio.Lock:
        return self._lock

    async def forget(self, _: str) -> None:
        pass


def test_copies_are_dropped_only_where_a_record_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The record of a writer that is gone was removed from etcd, and its last copies were dropped."""
    copy = tmp_path / "tree" / "file"
    copy.parent.mkdir()
    copy.write_bytes(b"acknowledged")

    async def work() -> None:
        records = ReplicaSetRecords(EmbeddedRecords())
        asked = 0
        real = records.is_holder

        async def is_holder(writer: str, node: str) -> bool:
            nonlocal asked
            asked += 1
            return await real(writer, node)

        monkeypatch.setattr(records, "is_holder", is_holder)
        me = Failover(
            "me",
            _Keeper(tmp_path),  # type: ignore[arg-type]
            records,
            view=lambda: ClusterView.__new__(ClusterView),
            build=lambda _: pytest.fail("persisted"),
            on_persisted=lambda _: pytest.fail("persisted"),
            delay_s=0,
        )
        task = asyncio.ensure_future(me._fail_over("a", _Run()))
        await until(lambda: asked >= 5)
        assert copy.read_bytes() == b"acknowledged"
        with pytest.raises(ClusterUnavailableError, match="no other node knows"):
            await real("a", "me")
        await records.put("a", {"another"})  # now it is said
        await task

    run_virtual(work())
    assert not copy.exists()
    assert sum("no other node knows" in record.getMessage() for record in caplog.records) == 1
