"""Copies of files: made when a file is fetched and when the policy wants more, dropped when it wants fewer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.dataplane.intent import FOREGROUND
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import Fetch
from tests.unit.dataplane.nodes_fixture import MIB, Known, NodesFixture, OneNode, body_of

pytestmark = pytest.mark.timeout(60)

SMALL, LARGE = 24, 3


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[NodesFixture]:
    async with NodesFixture(tmp_path).running() as world:
        for number in range(SMALL):
            size = 10_000 + number
            world.put(f"s/{number}", body_of(size, number)[:size])
        for number in range(LARGE):
            size = 5 * MIB + number
            world.put(f"l/{number}", body_of(size, number)[:size])
        yield world


def wanted(world: NodesFixture, name: str) -> list[OneNode]:
    owners = world.ownership.owners(world.view, b"/" + name.encode())
    return [world.nodes[owner.id] for owner in owners]


async def holding(world: NodesFixture, name: str, *, borrowed: bool | None = None) -> list[OneNode]:
    """Return the nodes that have a complete copy, and check its bytes."""
    nodes = []
    for node in world.nodes.values():
        id = (await node.entry(name)).id
        cached = node.store.index.cached(id)
        if cached is not None and cached.complete and borrowed in (None, cached.borrowed):
            assert node.content(id) == world.bodies[name]
            nodes.append(node)
    return nodes


async def settled(world: NodesFixture) -> None:
    for node in world.nodes.values():
        await node.rebalance.wait()
        await node.fresh.wait()


async def change(world: NodesFixture, copies: dict[bytes, int]) -> None:
    """Put other numbers of copies in force."""
    before, world.copies = world.copies, copies
    for node in world.nodes.values():
        node.rebalance.on_policy(lambda path: before.get(path, 1))
    await settled(world)


async def read_at_owners(world: NodesFixture) -> None:
    for node in world.nodes.values():
        node.rebalance.on_view(world.view)
    for name in world.bodies:
        await world.owner(name).read(name)
    await settled(world)


async def test_a_policy_that_wants_more_copies_gets_them_without_the_origin(world: NodesFixture) -> None:
    await read_at_owners(world)
    before = world.origin.bytes_read
    hot = {b"/" + name.encode(): 2 + number % 2 for number, name in enumerate(world.bodies) if number % 2}
    await change(world, hot)
    for name in world.bodies:
        owners = wanted(world, name)
        assert len(owners) == hot.get(b"/" + name.encode(), 1)
        assert await holding(world, name, borrowed=False) == sorted(owners, key=lambda node: node.id)
    assert world.origin.bytes_read == before


async def test_a_policy_that_wants_fewer_copies_drops_them(world: NodesFixture) -> None:
    await read_at_owners(world)
    paths = [b"/" + name.encode() for name in world.bodies]
    await change(world, dict.fromkeys(paths, 3))
    before = world.origin.bytes_read
    await change(world, dict.fromkeys(paths, 2))
    await change(world, {})
    for name in world.bodies:
        assert await holding(world, name) == wanted(world, name) == [world.owner(name)]
    dropped = sum(node.rebalance.copies_dropped for node in world.nodes.values())
    assert dropped == 2 * len(world.bodies)
    assert sum(node.rebalance.copy_bytes_dropped for node in world.nodes.values()) > 0
    for name, body in world.bodies.items():
        for node in world.nodes.values():
            assert await node.read(name) == body
    assert world.origin.bytes_read == before


@pytest.mark.expected_warnings("headrace.dataplane.handover")
async def test_a_copy_is_kept_where_the_owner_does_not_have_the_file(world: NodesFixture) -> None:
    await read_at_owners(world)
    paths = [b"/" + name.encode() for name in world.bodies]
    await change(world, dict.fromkeys(paths, 2))
    names = [name for name in world.bodies if world.owner(name).id == "a"]
    copies = {name: wanted(world, name)[1] for name in names}
    world.down = {"a"}
    await change(world, {})
    for name in names:
        assert copies[name] in await holding(world, name)


async def test_a_pinned_copy_is_kept(world: NodesFixture) -> None:
    await read_at_owners(world)
    await change(world, {b"/s/0": 2})
    other = wanted(world, "s/0")[1]
    assert other.store.pin((await other.entry("s/0")).id, True)
    await change(world, {})
    assert other in await holding(world, "s/0", borrowed=True)
    assert other.rebalance.copies_dropped == 0


@pytest.mark.expected_warnings("headrace.dataplane.peer_reader")
async def test_a_fetched_file_gets_its_copies(world: NodesFixture) -> None:
    world.makes_copies = True
    world.copies = {b"/" + name.encode(): 2 for name in world.bodies}
    reader = world.nodes["a"]
    for name, body in world.bodies.items():
        assert await reader.read(name) == body
    await settled(world)
    for name in world.bodies:
        assert set(await holding(world, name, borrowed=False)) == set(wanted(world, name))
    assert world.origin.bytes_read == sum(map(len, world.bodies.values()))
    assert sum(node.fresh.copies_made for node in world.nodes.values()) == len(world.bodies)
    world.origin.away = True
    for dead in world.nodes:
        world.down = {dead}
        for name, body in world.bodies.items():
            for node in world.nodes.values():
                if node.id != dead:
                    assert await node.read(name) == body
    assert world.origin.refused == 0


@pytest.mark.expected_warnings("headrace.dataplane.handover")
async def test_a_copy_that_fails_is_tried_again(world: NodesFixture) -> None:
    world.makes_copies = True
    world.copies = {b"/s/0": 2}
    owner, other = wanted(world, "s/0")
    world.down = {other.id}
    await owner.read("s/0")
    await until(lambda: bool(owner.fresh._failed))
    world.down = set()
    await settled(world)
    assert await holding(world, "s/0") == sorted([owner, other], key=lambda node: node.id)
    assert (owner.fresh.copies_made, owner.fresh.copies_failed) == (1, 0)


async def test_files_that_did_not_fit_into_the_queue_are_found_by_a_walk(
    world: NodesFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.dataplane.fresh_copies.WAITING_MAX", 3)
    for node in world.nodes.values():
        node.rebalance.on_view(world.view)
    world.makes_copies = True
    world.copies = {b"/" + name.encode(): 2 for name in world.bodies}
    await asyncio.gather(*(world.owner(name).read(name) for name in world.bodies))
    for _ in range(2):
        await settled(world)
    for name in world.bodies:
        assert set(await holding(world, name)) == set(wanted(world, name))


async def test_readers_of_a_file_with_copies_share_its_owners(tmp_path: Path) -> None:
    """A hot file of 16 nodes: its primary owner serves a part of the readers only."""
    async with NodesFixture(tmp_path, nodes="abcdefghijklmnop").running() as world:
        world.put("hot", body_of(50_000, 1)[:50_000])
        world.copies = {b"/hot": 4}
        owners = wanted(world, "hot")
        for owner in owners:
            await owner.read("hot")
        served = dict.fromkeys((owner.id for owner in owners), 0)
        for node in world.nodes.values():
            if node not in owners:
                route = node.sources.reader.route(b"/hot", 0, for_peer=False)
                served[route.hops[0].node.id] += 1
                assert await node.read("hot") == world.bodies["hot"]
        assert sum(served.values()) == 12
        assert served[owners[0].id] <= 7
        assert sum(count > 0 for count in served.values()) >= 3
        assert world.origin.bytes_read == 50_000


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.expected_warnings("headrace.dataplane.handover", "headrace.dataplane.peer_reader")
async def test_copies_follow_any_order_of_changes(tmp_path: Path, seed: int) -> None:
    """Members and policies change, also while the walk of an earlier change is running. No file is lost, and in the end
    exactly its owners have it."""
    choice = random.Random(seed)
    async with NodesFixture(tmp_path, nodes="abcde").running() as world:
        for number in range(16):
            world.put(f"s/{number}", body_of(3000, number)[: 3000 + number])
        world.put("l/0", body_of(3 * MIB, 1)[: 3 * MIB + 1])
        await read_at_owners(world)
        before = world.origin.bytes_read
        for _ in range(12):
            if choice.random() < 0.4:
                world.drain(choice.choice(["", *world.nodes]))
                for id in world.view.nodes:
                    world.nodes[id].rebalance.on_view(world.view)
            else:
                old = dict(world.copies)
                world.copies = {b"/" + name.encode(): choice.randint(1, 3) for name in world.bodies}
                for id in world.view.nodes:
                    world.nodes[id].rebalance.on_policy(lambda path, old=old: old.get(path, 1))  # type: ignore[misc]
            if choice.random() < 0.5:
                await asyncio.sleep(0)
            else:
                await settled(world)
        await settled(world)
        for name in world.bodies:
            assert set(await holding(world, name, borrowed=False)) >= set(wanted(world, name)), name
        for node in world.nodes.values():
            node.rebalance.check_all()  # a copy may have come when its node had been looked through
        await settled(world)
        for name in world.bodies:
            assert set(await holding(world, name, borrowed=False)) == set(wanted(world, name)), name
        for name, body in world.bodies.items():
            for id in world.view.nodes:
                assert await world.nodes[id].read(name) == body
        assert world.origin.bytes_read == before


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.expected_warnings("headrace.dataplane.handover", "headrace.dataplane.peer_reader")
async def test_copies_follow_changes_that_nodes_learn_of_in_any_order(tmp_path: Path, seed: int) -> None:
    """Each node learns of changes later, of several at once, and of members and policies in another order. In the end
    the owners have every file, and no byte was read again."""
    choice = random.Random(seed)
    async with NodesFixture(tmp_path, nodes="abcd").running() as world:
        for number in range(32):
            world.put(f"s/{number}", body_of(3000, number)[: 3000 + number])
        await read_at_owners(world)
        before = world.origin.bytes_read
        for node in world.nodes.values():
            node.known = Known(world.view, world.copies)
        for _ in range(4):
            world.drain(choice.choice(["", "d"]))
            world.copies = {b"/" + name.encode(): choice.randint(1, 3) for name in world.bodies}
            for node in choice.sample(list(world.nodes.values()), 4):
                for learn in choice.sample([learn_view, learn_policy], choice.randint(0, 2)):
                    learn(world, node)
                    await pass_time(choice.choice([0.0, 0.0, 0.01, 1.0]))
        for node in world.nodes.values():
            learn_view(world, node)
            learn_policy(world, node)
        await settled(world)
        for name in world.bodies:
            assert set(await holding(world, name, borrowed=False)) >= set(wanted(world, name)), name
        assert world.origin.bytes_read == before


def learn_view(world: NodesFixture, node: OneNode) -> None:
    assert node.known is not None
    node.known = replace(node.known, view=world.view)
    node.rebalance.on_view(world.view)


def learn_policy(world: NodesFixture, node: OneNode) -> None:
    assert node.known is not None
    old, node.known = node.known.copies, replace(node.known, copies=world.copies)
    if old != world.copies:
        node.rebalance.on_policy(lambda path: old.get(path, 1))


async def test_a_file_that_its_new_owner_refused_is_offered_again(world: NodesFixture) -> None:
    await read_at_owners(world)
    before = world.origin.bytes_read
    world.refusing = {"b"}
    world.copies = {b"/" + name.encode(): 2 for name in world.bodies}
    for node in world.nodes.values():
        node.rebalance.on_policy(lambda path: 1)
    await pass_time(1.0)
    assert any(node.rebalance.files_refused for node in world.nodes.values())
    world.refusing = set()
    await settled(world)
    for name in world.bodies:
        assert set(await holding(world, name, borrowed=False)) == set(wanted(world, name))
    assert not any(node.rebalance.files_refused for node in world.nodes.values())
    assert world.origin.bytes_read == before


@pytest.mark.expected_warnings("a background task failed")
async def test_a_walk_that_fails_broke_off_until_another_one_ends(
    world: NodesFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebalance = next(iter(world.nodes.values())).rebalance
    assert not rebalance.broke_off
    with monkeypatch.context() as patches:
        patches.setattr(rebalance, "_whole_first", lambda: 1 / 0)
        rebalance.on_view(world.view)
        assert not rebalance.broke_off
        await rebalance.wait()
    assert rebalance.broke_off
    rebalance.check_all()
    await rebalance.wait()
    assert not rebalance.broke_off


async def test_a_file_that_its_owner_evicted_comes_from_the_copy(world: NodesFixture) -> None:
    """A policy that wants fewer copies must not read the origin: the nodes that drop theirs have the files."""
    await read_at_owners(world)
    await change(world, dict.fromkeys((b"/" + name.encode() for name in world.bodies), 2))
    before = world.origin.bytes_read
    for name in world.bodies:
        owner = world.owner(name)
        owner.store.free((await owner.entry(name)).id)
    await change(world, {})
    for name in world.bodies:
        assert await holding(world, name) == [world.owner(name)]
    assert world.origin.bytes_read == before


@pytest.mark.expected_warnings("headrace.dataplane.peer_reader")
async def test_one_owner_is_asked_for_what_the_origin_does_not_give(
    world: NodesFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each owner waits for the origin. A read that tried all of them would wait so many times."""
    world.copies = {b"/s/0": 3}
    owners = wanted(world, "s/0")
    (reader,) = set(world.nodes.values()) - set(owners)
    entry = await reader.entry("s/0")
    fetching: list[str] = []

    def noting(node: OneNode, opening: Any) -> Any:
        async def open_many(request: Fetch, *, peer: str) -> Any:
            if not request.cached_only:
                fetching.append(node.id)
            return await opening(request, peer=peer)

        return open_many

    for node in world.nodes.values():
        monkeypatch.setattr(node.desk, "open_many", noting(node, node.desk.open_many))
    world.origin.away = True
    with pytest.raises(OriginUnavailableError):
        await reader.reads.fill(entry.id, 0, entry.version.size_bytes, FOREGROUND)
    assert fetching == [owners[0].id]
    world.origin.away = False
    await owners[2].read("s/0")
    world.origin.away = True
    assert await reader.read("s/0") == world.bodies["s/0"], "another owner has it"
