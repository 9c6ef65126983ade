"""Records that are refused only because this host's clock is wrong are accepted when it is right again."""

from __future__ import annotations

import time

import pytest

from headrace.cluster import beliefs as beliefs_module
from headrace.cluster.beliefs import NOTHING, Beliefs
from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls
from headrace.identity.seals import Seals
from tests.certificates import authority, issued

pytestmark = pytest.mark.expected_warnings("refused interface")
RECORD = b'{"a":1}'
HOUR_S = 3600.0
YEAR_S = 365 * 24 * HOUR_S


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._real = monkeypatch, time.time

    def set(self, offset_s: float) -> None:
        self._patch.setattr(time, "time", lambda: self._real() + offset_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("lab") / "authority")


@pytest.fixture(scope="module")
def other(lab: Authority) -> Seals:
    return Seals(MutualTls(issued(lab, "b")))


@pytest.fixture
def beliefs(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> Beliefs:
    files = issued(lab, "a", file=tmp_path_factory.mktemp("a").name)
    return Beliefs(Seals(MutualTls(files)), None, {})


@pytest.mark.parametrize("key", ["nodes/b", "jobs/7", "jobs/7/parts/b", "written/b"])
def test_a_record_that_arrives_while_the_clock_is_slow(
    beliefs: Beliefs, other: Seals, clock: Clock, key: str
) -> None:
    """Such as that of a node that joins, and that a view would lack from then on."""
    sealed = other.close(key, RECORD)
    clock.set(-HOUR_S)
    assert beliefs.meaning(key, sealed, newest=True) == NOTHING
    assert beliefs.accepted_late() == {}
    clock.set(0)
    assert beliefs.accepted_late() == {key: RECORD}
    assert beliefs.accepted_late() == {}
    assert beliefs.meaning(key, sealed, newest=True) == RECORD


@pytest.mark.parametrize("offset_s", [-HOUR_S, YEAR_S])
def test_a_member_that_is_read_again_while_the_clock_is_wrong(
    beliefs: Beliefs, other: Seals, clock: Clock, offset_s: float
) -> None:
    sealed = other.close("nodes/b", RECORD)
    assert beliefs.meaning("nodes/b", sealed, newest=True) == RECORD
    clock.set(offset_s)
    assert beliefs.meaning("nodes/b", sealed, newest=True) == NOTHING
    clock.set(0)
    assert beliefs.accepted_late() == {"nodes/b": RECORD}


@pytest.mark.parametrize("change", [None, b'{"forged":1}'], ids=["deleted", "forged"])
def test_a_record_that_was_taken_away_stays_refused(
    beliefs: Beliefs, other: Seals, change: bytes | None
) -> None:
    sealed = other.close("nodes/b", RECORD)
    assert beliefs.meaning("nodes/b", sealed, newest=True) == RECORD
    assert beliefs.meaning("nodes/b", change, newest=True) in (None, NOTHING)
    assert beliefs.meaning("nodes/b", sealed, newest=True) == NOTHING
    assert beliefs.accepted_late() == {}


def test_many_refused_records_hold_the_loop_for_a_moment_only(
    beliefs: Beliefs, other: Seals, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beliefs_module, "LOOKS_AT_ONCE", 3)
    sealed = {f"jobs/{number}": other.close(f"jobs/{number}", RECORD) for number in range(4)}
    clock.set(-HOUR_S)
    for number in range(10):
        assert beliefs.meaning(f"mounts/{number}", b"forged", newest=True) == NOTHING
    for key, raw in sealed.items():
        assert beliefs.meaning(key, raw, newest=True) == NOTHING
    clock.set(0)
    rounds = [beliefs.accepted_late() for _ in range(8)]
    assert max(map(len, rounds)) <= 3
    assert {key for accepted in rounds for key in accepted} == set(sealed)
