"""Shares, movement, zones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ring.ring import MEMBERS_MAX, Ring, RingMember, key_of
from headrace.ring.view import NodeInfo, next_view

KEYS = [key_of(b"/data/%d" % number, 0) for number in range(2000)]

ids = st.text("abcdefghij0123456789-", min_size=1, max_size=8)
members = st.lists(
    st.builds(RingMember, ids, st.integers(1, 1 << 45), st.sampled_from(["", "a", "b", "c"])),
    min_size=1,
    max_size=12,
    unique_by=lambda member: member.id,
)


def shares(ring: Ring) -> dict[str, float]:
    """Return the exact shares of the circle: from each point to the one before it."""
    spans = dict.fromkeys((member.id for member in ring.members), 0)
    before = ring._points[-1] - (1 << 64)
    for point in ring._points:
        spans[ring._member_at(point).id] += point - before
        before = point
    return {id: share / (1 << 64) for id, share in spans.items()}


def named(count: int, *, weight: int = 1 << 40) -> list[RingMember]:
    return [RingMember(f"node-{number}", weight) for number in range(count)]


@pytest.mark.parametrize("count", [2, 8, 64, 1000])
def test_equal_members_have_equal_shares_within_a_tenth(count: int) -> None:
    for share in shares(Ring(named(count))).values():
        assert 0.9 / count <= share <= 1.1 / count


def test_shares_follow_the_weights() -> None:
    weights = {"small": 1 << 40, "middle": 3 << 39, "large": 4 << 40}
    portions = shares(Ring([RingMember(id, weight) for id, weight in weights.items()]))
    for id, weight in weights.items():
        assert portions[id] == pytest.approx(weight / sum(weights.values()), rel=0.1)


@settings(max_examples=60, deadline=None)
@given(members, st.builds(RingMember, st.just("joins"), st.integers(1, 1 << 40)))
def test_who_joins_takes_keys_only_for_itself(before: list[RingMember], joins: RingMember) -> None:
    heaviest = max(member.weight for member in before)
    joins = RingMember(joins.id, min(joins.weight, heaviest))
    old, new = Ring(before), Ring([*before, joins])
    for key in KEYS[:300]:
        assert new.owners(key)[0] in (old.owners(key)[0], joins)


@settings(max_examples=60, deadline=None)
@given(members, st.integers(1, 4))
def test_who_leaves_gives_away_only_its_own(before: list[RingMember], count: int) -> None:
    leaves = min(before, key=lambda member: member.weight)
    rest = [member for member in before if member is not leaves]
    old, new = Ring(before), Ring(rest)
    for key in KEYS[:200]:
        owners = old.owners(key, count)
        if leaves not in owners and all(member.zone == "" for member in before):
            assert new.owners(key, count) == owners
        elif owners[0] != leaves:
            assert new.owners(key)[0] == owners[0]


@settings(max_examples=100, deadline=None)
@given(members, st.integers(1, 14))
def test_owners_are_distinct_and_of_distinct_zones_while_there_are_any(
    all_members: list[RingMember], count: int
) -> None:
    ring = Ring(all_members)
    zones = {member.zone for member in all_members}
    for key in KEYS[:20]:
        owners = ring.owners(key, count)
        assert len(owners) == min(count, len(all_members))
        assert len(set(owners)) == len(owners)
        assert owners[0] == ring.owners(key)[0]
        first = owners[: len(zones)]
        assert len({owner.zone for owner in first}) == len(first)
        for fewer in {count // 2, count - 1} - {0}:  # asking for more changes nothing of those before
            assert ring.owners(key, fewer) == owners[:fewer]


def test_order_of_the_members_is_no_matter_and_ids_are_unique() -> None:
    forward, backward = Ring(named(9)), Ring(reversed(named(9)))
    assert [forward.owners(key, 3) for key in KEYS] == [backward.owners(key, 3) for key in KEYS]
    with pytest.raises(ValueError, match="two members"):
        Ring([*named(2), *named(1)])
    with pytest.raises(ValueError, match="at most"):
        Ring(RingMember(str(number), 1) for number in range(MEMBERS_MAX + 1))
    assert Ring([]).owners(1, 3) == ()


many_members = st.lists(
    st.builds(RingMember, ids, st.sampled_from([1, 700, 1024, 1500]), st.sampled_from(["", "a", "b"])),
    min_size=8,
    max_size=20,
    unique_by=lambda member: member.id,
)
changes = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["leave", "join", "grow", "move"])), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(many_members, changes)
def test_a_ring_made_from_the_one_before_is_the_one_built_anew(
    first: list[RingMember], steps: list[tuple[int, str]]
) -> None:
    now, ring = first, Ring(first)
    for number, (place, change) in enumerate(steps):
        index = place % len(now)
        member = now[index]
        rest = [*now[:index], *now[index + 1 :]]
        now = {
            "leave": rest if len(rest) > 1 else now,
            "join": [*now, RingMember(f"NEW-{number}", 1024, member.zone)],
            "grow": [*rest, RingMember(member.id, member.weight + 300, member.zone)],
            "move": [*rest, RingMember(member.id, member.weight, "c" if member.zone != "c" else "a")],
        }[change]
        ring = Ring(now, previous=ring)
        anew = Ring(now)
        assert ring.members == anew.members
        assert shares(ring) == pytest.approx(shares(anew))
        for key in KEYS[:20]:  # the shares compare the whole circle
            assert ring.owners(key, 4) == anew.owners(key, 4)


def test_of_many_members_one_that_comes_or_goes_leaves_the_rest_as_it_is() -> None:
    """Through portions and slots: one leaves, another takes its slot."""
    members = [RingMember(f"node-{number}", 1 << 40, f"zone-{number % 3}") for number in range(200)]
    ring = Ring(members)
    without = Ring(members[1:], previous=ring)
    instead = Ring([*members[1:], RingMember("late", 1 << 40, "zone-0")], previous=without)
    assert None in without._slots  # not built anew
    assert len(instead._slots) == len(members)
    for built, derived in (
        (Ring(members[1:]), without),
        (Ring([*members[1:], RingMember("late", 1 << 40, "zone-0")]), instead),
    ):
        assert [built.owners(key, 5) for key in KEYS] == [derived.owners(key, 5) for key in KEYS]


def test_keys_spread_by_segment_and_path() -> None:
    assert len({key_of(b"/a", segment) for segment in range(1000)}) == 1000
    assert key_of(b"/a", 0) != key_of(b"/b", 0)


def info(id: str, *, draining: bool = False) -> NodeInfo:
    return NodeInfo(id, "i", f"{id}:1", "", 1 << 40, "0", 1, draining)


def table(infos: Iterable[NodeInfo]) -> dict[str, NodeInfo]:
    return {node.id: node for node in infos}


def test_views_remember_the_rings_before() -> None:
    view = next_view(None, table(map(info, "ab")), epoch=1)
    assert view.former == ()
    same = next_view(view, table([info("a"), info("b")]), epoch=2)
    assert same.ring is view.ring
    joined = next_view(same, table(map(info, "abc")), epoch=3)
    moved = [path for path in (b"/%d" % n for n in range(500)) if joined.owners(path)[0].id == "c"]
    assert moved
    for path in moved:
        assert joined.former_owners(path) == view.owners(path)
    drained = next_view(joined, table([info("a"), info("b"), info("c", draining=True)]), epoch=4)
    assert all(drained.owners(path)[0].id != "c" for path in moved)
    assert all("c" in [owner.id for owner in drained.former_owners(path)] for path in moved)
    gone = next_view(drained, table(map(info, "ab")), epoch=5)
    assert gone.ring is drained.ring
    assert all("c" not in [owner.id for owner in gone.former_owners(path)] for path in moved)
    for number in range(20):
        gone = next_view(gone, table(map(info, "ab" if number % 2 else "abc")), epoch=6 + number)
    assert len(gone.former) <= 4


def test_nodes_that_all_drain_go_on_owning() -> None:
    view = next_view(None, table([info("a", draining=True)]), epoch=1)
    assert view.owners(b"/x")[0].id == "a"
