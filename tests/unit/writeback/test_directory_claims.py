"""Claims of exclusive directories: one node has one, and keeps it until it gave it up or an operator broke it."""

from __future__ import annotations

import msgspec
import pytest

from headrace.base import boot_clock
from headrace.base.errors import ClusterUnavailableError, UsageError
from headrace.base.write_modes import WriteModes
from headrace.cluster.embedded import EmbeddedRecords
from headrace.cluster.records import Followers
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.writeback.coherence.directory_claims import ClaimRecord, DirectoryClaims, writes_of
from headrace.writeback.coherence.dirty_scope import DirtyScope
from tests.unit.writeback.late_answer import LateAnswer

OUT = "off,/out=back,exclusive"
KEY = "claims//out"


class UnavailableRecords(EmbeddedRecords):
    """Records of a store that can be away."""

    away = False

    async def list(self, prefix: str) -> dict[str, bytes]:
        if self.away:
            raise ClusterUnavailableError("etcd", why="away")
        return await super().list(prefix)

    async def get(self, key: str) -> bytes | None:
        if self.away:
            raise ClusterUnavailableError("etcd", why="away")
        return await super().get(key)


class ClaimsFixture:
    """The records of a cluster, and what its nodes do with them."""

    def __init__(self) -> None:
        self.shared = Followers()
        self.running: list[DirectoryClaims] = []

    def records(self) -> UnavailableRecords:
        return UnavailableRecords(self.shared)

    async def join(self, me: str, modes: str) -> None:
        info = NodeInfo(me, "run", "127.0.0.1:1", "", 1, "0", 1, writes=writes_of(WriteModes.parse(modes)))
        await self.records().put(f"nodes/{me}", msgspec.json.encode(info))

    async def leave(self, me: str) -> None:
        await self.records().delete(f"nodes/{me}")

    def claims(self, me: str, modes: str = OUT, records: UnavailableRecords | None = None) -> DirectoryClaims:
        self.running.append(DirectoryClaims(me, records or self.records(), WriteModes.parse(modes)))
        return self.running[-1]

    async def end(self) -> None:
        for claims in self.running:
            await claims.stop()


async def yes(_: bytes) -> bool:
    return True


async def no(_: bytes) -> bool:
    return False


async def test_another_node_is_refused_until_the_holder_gives_up() -> None:
    cluster = ClaimsFixture()
    first, second = cluster.claims("n0"), cluster.claims("n1")
    tokens = await first.acquire({})
    assert first.trouble_at(b"/out/f") == "" and list(tokens) == [b"/out"]
    with pytest.raises(UsageError, match=r"node n0 has claimed /out.*break-claim /out"):
        await second.acquire({})
    await first.give_up(no)
    with pytest.raises(UsageError, match="node n0 has claimed /out"):
        await second.acquire({})
    await first.give_up(yes)
    assert (await second.acquire({}))[b"/out"] != tokens[b"/out"]
    await cluster.end()


@pytest.mark.parametrize("modes", ["off,/out/a=back,exclusive", "off,/out/a/b=back,exclusive"])
async def test_a_directory_above_or_below_is_refused(modes: str) -> None:
    cluster = ClaimsFixture()
    await cluster.claims("n0").acquire({})
    with pytest.raises(UsageError, match="node n0 has claimed /out"):
        await cluster.claims("n1", modes).acquire({})
    await cluster.claims("n1", "off,/outside=back,exclusive").acquire({})
    with pytest.raises(UsageError, match="node n0 has claimed /out"):
        await cluster.claims("n2", modes).acquire({})
    await cluster.end()


async def test_the_next_run_of_the_holder_has_the_same_claim() -> None:
    cluster = ClaimsFixture()
    tokens = await cluster.claims("n0").acquire({})
    assert await cluster.claims("n0").acquire(tokens) == tokens  # it was killed
    last = cluster.claims("n0")
    assert await last.acquire(tokens) == tokens
    await last.give_up(yes)
    again = cluster.claims("n0")
    assert await again.acquire(tokens) == tokens  # nobody had it in between
    await again.give_up(yes)
    await cluster.claims("n1", "back").acquire({})  # it may write there now
    assert await cluster.claims("n0").acquire(tokens) != tokens
    await cluster.end()


@pytest.mark.parametrize("modes", ["back", "off,/out/a=through", "off,/out=back:2"])
async def test_a_node_that_writes_there_keeps_others_from_claiming(modes: str) -> None:
    cluster = ClaimsFixture()
    await cluster.join("n1", modes)
    with pytest.raises(UsageError, match="node n1 writes there, too"):
        await cluster.claims("n0").acquire({})
    await cluster.leave("n1")
    await cluster.claims("n0").acquire({})
    with pytest.raises(UsageError, match=r"node n0 has claimed the directory /out.*add /out=off"):
        await cluster.claims("n1", modes).acquire({})
    await cluster.end()


@pytest.mark.parametrize("modes", ["back,/out=off", "off,/out=local", "off,/out=local,exclusive", "off"])
async def test_a_node_that_persists_nothing_there_disturbs_nobody(modes: str) -> None:
    cluster = ClaimsFixture()
    await cluster.join("n1", modes)
    await cluster.claims("n0").acquire({})
    assert await cluster.claims("n1", modes).acquire({}) == {}
    await cluster.end()


async def test_replicas_that_are_not_persisted_keep_others_from_claiming() -> None:
    """Another node persists them in the place of their writer, which is gone."""
    cluster = ClaimsFixture()
    records = cluster.records()
    await records.put("written/n1", DirtyScope(frozenset([b"/out/d"])).encode())
    await records.put("copies/n1", b'["n2"]')
    with pytest.raises(UsageError, match="replicas of files of node n1 there are not persisted"):
        await cluster.claims("n0").acquire({})
    await records.put("written/n1", DirtyScope(frozenset([b"/outside"])).encode())
    await cluster.claims("n0").acquire({})
    await cluster.end()


@pytest.mark.expected_warnings("an operator broke a claim", "was broken, it is not persisted")
async def test_an_operator_breaks_the_claim_of_a_lost_node() -> None:
    cluster = ClaimsFixture()
    lost, other = cluster.claims("n0"), cluster.claims("n1", "off")
    await cluster.join("n0", OUT)
    tokens = await lost.acquire({})
    with pytest.raises(UsageError, match="node n0 is in the cluster"):
        await other.break_claim(b"/out", force=False)
    with pytest.raises(UsageError, match="no node has claimed"):
        await other.break_claim(b"/else", force=True)
    with pytest.raises(UsageError, match="this node holds it"):
        await lost.break_claim(b"/out", force=True)
    await cluster.leave("n0")
    assert await other.break_claim(b"/out", force=False) == "n0"
    assert "not confirmed" in lost.trouble_at(b"/out/f")  # at once
    await pass_time(1.0)
    assert "was broken, nobody has it" in lost.trouble_at(b"/out/f")
    assert lost.status() == {"claims": [{"path": "/out", "trouble": lost.trouble_at(b"/out")}]}
    await cluster.claims("n1").acquire({})
    with pytest.raises(UsageError, match="node n1 has claimed /out"):
        await cluster.claims("n0").acquire(tokens)
    await cluster.end()


async def test_a_claim_that_etcd_lost_is_written_again() -> None:
    cluster = ClaimsFixture()
    claims = cluster.claims("n0")
    await claims.acquire({})
    record = cluster.shared.mirror[KEY]
    await cluster.records().delete(KEY)
    assert claims.trouble_at(b"/out/f")
    await pass_time(1.0)
    assert claims.trouble_at(b"/out/f") == "" and cluster.shared.mirror[KEY] == record
    await cluster.end()


@pytest.mark.expected_warnings("headrace.writeback.coherence.directory_claims")
async def test_a_claim_that_is_broken_while_its_record_is_read_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event arrives before the answer, which is older. The node would persist there for ever."""
    cluster = ClaimsFixture()
    records, other = cluster.records(), cluster.claims("n1", "off")
    claims = cluster.claims("n0", records=records)
    await claims.acquire({})
    LateAnswer(monkeypatch, records, lambda: other.break_claim(b"/out", force=True))
    records.leases_lost += 1  # it must read the record again
    await pass_time(2.0)
    assert "was broken" in claims.trouble_at(b"/out/f")
    await cluster.end()


async def test_nothing_is_persisted_once_the_own_lease_has_ended() -> None:
    """Another node may take this one for dead by then, and an operator may break its claim."""
    cluster = ClaimsFixture()
    records = cluster.records()
    claims = cluster.claims("n0", records=records)
    await claims.acquire({})
    records.lease_until_s = boot_clock.now_s() - 0.1
    assert "etcd is unavailable" in claims.trouble_at(b"/out/d/f")
    assert claims.trouble_at(b"/elsewhere") == ""
    records.lease_until_s = boot_clock.now_s() + 60
    assert claims.trouble_at(b"/out/d/f") == ""
    await cluster.end()


async def test_after_a_lost_lease_the_record_is_read_before_anything_is_persisted() -> None:
    """The node was suspended. The change of the record may reach it later than its new lease."""
    cluster = ClaimsFixture()
    records = cluster.records()
    claims = cluster.claims("n0", records=records)
    await claims.acquire({})
    records.leases_lost += 1
    assert "not confirmed" in claims.trouble_at(b"/out/f")
    await pass_time(1.0)
    assert claims.trouble_at(b"/out/f") == ""
    await claims.give_up(yes)
    assert "given up" in claims.trouble_at(b"/out/f")
    await cluster.end()


async def test_the_claim_of_a_run_that_was_killed_is_not_given_up_for_another_writer() -> None:
    cluster = ClaimsFixture()
    tokens = await cluster.claims("n0").acquire({})
    await cluster.join("n1", "back")  # it did not look at the claims
    with pytest.raises(UsageError, match="node n1 writes there, too"):
        await cluster.claims("n0").acquire(tokens)
    with pytest.raises(UsageError, match="node n0 has claimed /out"):
        await cluster.claims("n2").acquire({})
    await cluster.end()


@pytest.mark.expected_warnings("etcd has not confirmed the exclusive directories")
async def test_a_node_that_starts_without_etcd_keeps_its_directory_and_waits() -> None:
    cluster = ClaimsFixture()
    tokens = await cluster.claims("n0").acquire({})
    records = cluster.records()
    records.away = True
    with pytest.raises(ClusterUnavailableError):
        await cluster.claims("n0", records=records).acquire({})
    again = cluster.claims("n0", records=records)
    assert await again.acquire(tokens) == tokens
    await pass_time(5.0)
    assert "not confirmed" in again.trouble_at(b"/out/f")
    records.away = False
    await pass_time(1.0)
    assert again.trouble_at(b"/out/f") == ""
    await cluster.end()


@pytest.mark.expected_warnings("the record of a claim is invalid", "an operator broke a claim")
@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"[]", b'{"node":7,"token":"a"}', b'{"node":"n1"}', b'{"node":"../x","token":"a"}', b"\xff",
        b'{"node":"n1","token":""}', b'{"node":"n1","token":"' + b"a" * 999 + b'"}', b"[" * 100_000,
    ],
    ids=range(9),
)  # fmt: skip
async def test_a_record_of_nonsense_is_no_claim_of_this_node_and_can_be_broken(raw: bytes) -> None:
    cluster = ClaimsFixture()
    await cluster.records().put(KEY, raw)
    with pytest.raises(UsageError, match=r"node \? has claimed /out"):
        await cluster.claims("n0").acquire({})
    other = cluster.claims("n1", "off")
    await other.acquire({})
    assert "claimed /out" in other.trouble_at(b"/out/f")
    await other.break_claim(b"/out", force=False)
    await cluster.claims("n0").acquire({})
    await cluster.end()


@pytest.mark.parametrize(
    "key", ["claims/", "claims//", "claims/out", "claims//out/", "claims//a/../out", "claims//%6fut"]
)
async def test_a_key_that_no_node_writes_is_ignored(key: str) -> None:
    cluster = ClaimsFixture()
    await cluster.records().put(key, ClaimRecord("n1", "a").encode())
    claims = cluster.claims("n0")
    await claims.acquire({})
    assert claims.trouble_at(b"/out/f") == claims.trouble_at(b"/elsewhere") == ""
    await cluster.end()


@pytest.mark.parametrize("writes", ["back,/out=unknown", "%ff%00", "/out", "a" * 100_000])
async def test_write_modes_that_nobody_knows_count_as_writing(writes: str) -> None:
    cluster = ClaimsFixture()
    info = NodeInfo("n1", "run", "127.0.0.1:1", "", 1, "0", 1, writes=writes)
    await cluster.records().put("nodes/n1", msgspec.json.encode(info))
    with pytest.raises(UsageError, match="node n1 writes there, too"):
        await cluster.claims("n0").acquire({})
    await cluster.end()


def test_write_modes_of_any_path_fit_into_a_record() -> None:
    modes = WriteModes.parse("off,/o\udcffut=back,exclusive")
    assert writes_of(modes) == "off,/o%FFut=back,exclusive"
