"""A route names who is asked, in which order."""

from __future__ import annotations

from headrace.dataplane.route import route
from headrace.ring.ownership import Ownership
from headrace.ring.ring import key_of
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo, alone, next_view

PATHS = [b"/data/%d" % number for number in range(200)]


def info(id: str, *, draining: bool = False) -> NodeInfo:
    return NodeInfo(id, "i", f"{id}:1", "", 1 << 30, "0", 1, draining)


def view_of(*ids: str, before: ClusterView | None = None) -> ClusterView:
    return next_view(before, {id: info(id) for id in ids}, epoch=1)


def ring_ownership(replicas: int) -> Ownership:
    return Ownership(lambda path: replicas)


def ways(view: ClusterView, me: str, *, replicas: int = 1, for_peer: bool = False, moving: bool = False):  # type: ignore[no-untyped-def]
    return {
        path: route(view, me, path, 0, ownership=ring_ownership(replicas), for_peer=for_peer, moving=moving)
        for path in PATHS
    }


def test_alone_asks_the_origin() -> None:
    for way in ways(alone(info("a")), "a").values():
        assert way.owned
        assert way.hops == ()


def test_an_owner_asks_the_origin_and_the_others_ask_the_owner() -> None:
    view = view_of("a", "b", "c")
    of = {me: ways(view, me) for me in "abc"}
    for path in PATHS:
        owner = view.owners(path)[0].id
        for me in "abc":
            way = of[me][path]
            assert way.owned == (me == owner)
            assert [hop.node.id for hop in way.hops] == ([] if me == owner else [owner])
            assert not any(hop.cached_only for hop in way.hops)


def test_replicas_come_after_the_owner_and_a_replica_asks_the_owner() -> None:
    view = view_of("a", "b", "c", "d")
    for path in PATHS:
        owners = [owner.id for owner in view.owners(path, replicas=2)]
        for me in "abcd":
            way = route(view, me, path, 0, ownership=ring_ownership(2), for_peer=False, moving=False)
            assert way.owned == (me in owners)
            expected = [] if me == owners[0] else [owner for owner in owners if owner != me]
            hops = [hop.node.id for hop in way.hops if not hop.early]
            assert hops == expected and not any(hop.cached_only for hop in way.hops if not hop.early)


def test_readers_divide_the_copies_and_ask_only_the_primary_to_fetch() -> None:
    view = view_of("a", "b", "c", "d")
    first: dict[int, int] = {0: 0, 1: 0}
    for path in PATHS:
        owners = [owner.id for owner in view.owners(path, replicas=2)]
        for me in set("abcd") - set(owners):
            hops = route(view, me, path, 0, ownership=ring_ownership(2), for_peer=False, moving=False).hops
            first[owners.index(hops[0].node.id)] += 1
            is_early = hops[0].node.id == owners[1]
            assert hops[0].early == hops[0].cached_only == is_early
            assert [hop.node.id for hop in hops[is_early:]] == owners
    assert 0.35 < first[1] / sum(first.values()) < 0.65


def test_a_reader_asks_the_copy_in_its_zone() -> None:
    zones = {"a": "x", "b": "x", "c": "y", "d": "y"}
    nodes = {id: NodeInfo(id, "i", f"{id}:1", zone, 1 << 30, "0", 1) for id, zone in zones.items()}
    view = next_view(None, nodes, epoch=1)
    for path in PATHS:
        owners = [owner.id for owner in view.owners(path, replicas=2)]
        assert {zones[id] for id in owners} == {"x", "y"}
        for me in set("abcd") - set(owners):
            hops = route(view, me, path, 0, ownership=ring_ownership(2), for_peer=False, moving=False).hops
            assert zones[hops[0].node.id] == zones[me]


def test_holders_of_a_hot_segment_own_it_too() -> None:
    view = view_of("a", "b", "c", "d")
    key = key_of(b"/hot", 0)
    owner = view.owners(b"/hot")[0].id
    holder, reader = sorted(set("abcd") - {owner})[:2]
    holders = {key: (holder, "gone", owner)}
    ownership = Ownership(lambda path: 1, lambda key: holders.get(key, ()))
    assert [node.id for node in ownership.owners(view, b"/hot")] == [owner, holder]
    assert [node.id for node in ownership.owners(view, b"/hot", 1)] == [view.owners(b"/hot", 1)[0].id]
    assert route(view, holder, b"/hot", 0, ownership=ownership, for_peer=False, moving=False).owned
    hops = route(view, reader, b"/hot", 0, ownership=ownership, for_peer=False, moving=False).hops
    assert {hop.node.id for hop in hops} == {owner, holder}


def test_for_a_peer_nobody_is_asked_to_fetch() -> None:
    view = view_of("a", "b", "c", before=view_of("a", "b"))
    for me in "abc":
        for moving in (False, True):
            for way in ways(view, me, replicas=2, for_peer=True, moving=moving).values():
                assert all(hop.cached_only and hop.node.id != me for hop in way.hops)
                assert moving or not way.hops


def test_a_new_owner_asks_the_one_before() -> None:
    before = view_of("a", "b")
    view = view_of("a", "b", "c", before=before)
    moved = [path for path in PATHS if view.owners(path)[0].id == "c"]
    assert len(moved) > 20
    for path in moved:
        way = route(view, "c", path, 0, ownership=ring_ownership(1), for_peer=False, moving=True)
        assert [hop.node.id for hop in way.hops] == [before.owners(path)[0].id]
        assert all(hop.cached_only for hop in way.hops)


def test_one_that_left_is_not_asked() -> None:
    view = view_of("a", "b", before=view_of("a", "b", "c"))
    for me in "ab":
        for way in ways(view, me, moving=True).values():
            assert "c" not in [hop.node.id for hop in way.hops]


def test_segments_of_a_large_file_have_owners_of_their_own() -> None:
    view = view_of("a", "b", "c")
    firsts = {
        route(
            view,
            "x",
            b"/large",
            number * SEGMENT_BYTES,
            ownership=ring_ownership(1),
            for_peer=False,
            moving=False,
        )
        .hops[0]
        .node.id
        for number in range(40)
    }
    assert firsts == {"a", "b", "c"}


def test_while_it_is_handed_over_the_one_before_is_asked_first() -> None:
    before = view_of("a", "b")
    view = view_of("a", "b", "c", before=before)
    moved = [path for path in PATHS if view.owners(path)[0].id == "c"]
    for path in PATHS:
        former = before.owners(path)[0].id
        reader = "b" if former == "a" else "a"
        way = route(
            view, reader, path, 0, ownership=ring_ownership(1), for_peer=False, moving=True, handing_over=True
        )
        expected = [(former, True), ("c", False)] if path in moved else [(former, False)]
        assert [(hop.node.id, hop.cached_only) for hop in way.hops] == expected
        own = route(
            view, former, path, 0, ownership=ring_ownership(1), for_peer=False, moving=True, handing_over=True
        )
        assert all(hop.node.id != former for hop in own.hops)
