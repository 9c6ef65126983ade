"""The read flow across nodes, without sockets: every node's peers are called directly."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.base.errors import NotOwnerError, PathNotFoundError, VersionChangedError
from headrace.base.model import Attributes, FileId, ObjectMetadata
from headrace.dataplane import peer_reader
from headrace.dataplane.intent import FOREGROUND
from headrace.dataplane.peer_service import NodePeerService
from headrace.store.object_metadata import noted
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import Fetch, FileRange, OfferHandover
from tests.unit.dataplane.nodes_fixture import MIB, NodesFixture, body_of

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[NodesFixture]:
    async with NodesFixture(tmp_path).running() as world:
        yield world


def filled(world: NodesFixture, *, small: int = 20, large: int = 2) -> None:
    for number in range(small):
        world.put(f"s/{number}", body_of(1000 + number, number)[: 1000 + number])
    for number in range(large):
        size = 3 * MIB + number
        world.put(f"l/{number}", body_of(size, number)[:size])


@pytest.mark.parametrize("names_known", [True, False])
async def test_reads_of_all_nodes_wait_for_an_origin_that_is_away(
    world: NodesFixture, names_known: bool
) -> None:
    """Also those that wait for another node, which waits. Nothing leaves the origin twice."""
    filled(world, small=30, large=3)
    for node in world.nodes.values() if names_known else ():
        for name in world.bodies:
            await node.entry(name)
    world.origin.away = True
    reads = {
        (id, name): asyncio.ensure_future(node.read(name))
        for id, node in world.nodes.items()
        for name in world.bodies
    }
    await pass_time(2.0)  # longer than a handful of attempts takes
    assert not any(read.done() for read in reads.values())
    refused = world.origin.refused
    assert refused < len(world.nodes) * 60
    world.origin.away = False
    for (_, name), read in reads.items():
        assert await read == world.bodies[name]
    assert world.origin.bytes_read == sum(map(len, world.bodies.values()))


async def test_what_the_origin_tells_of_an_object_goes_with_its_bytes(world: NodesFixture) -> None:
    metadata = ObjectMetadata({"a": "b"}, {"Content-Type": "text/x"}, None)
    sizes = {"small": 1000, "large": 5 * MIB}
    for name, size in sizes.items():
        world.origin.hold(name, body_of(size, 1)[:size], Attributes(extras=metadata))
    for name in sizes:
        for node in world.nodes.values():
            await node.read(name)
            cached = node.store.index.cached((await node.entry(name)).id)
            assert cached is not None
            if os.geteuid() == 0:
                assert noted(node.store.volumes, cached) == metadata, (name, node.id)
    assert world.origin.bytes_read == 5 * MIB + 1000
    assert world.origin.heads == 0


async def test_each_byte_leaves_the_origin_once(world: NodesFixture) -> None:
    filled(world)
    for name, body in world.bodies.items():
        copies = await asyncio.gather(*(node.read(name) for node in world.nodes.values()))
        assert all(copy == body for copy in copies), name
    assert world.origin.bytes_read == sum(map(len, world.bodies.values()))
    assert all(count == 1 for name, count in world.origin.reads.items() if name.startswith("s/"))
    assert world.origin.listings <= 3  # the root, and each folder, by its owner
    borrowed = [node.store.statistics()["borrowed_bytes"] for node in world.nodes.values()]
    assert all(count > 0 for count in borrowed)


@pytest.mark.expected_warnings("headrace.dataplane.peer_reader")
async def test_a_dead_owner_costs_no_error(world: NodesFixture) -> None:
    filled(world)
    world.down = {"a"}
    for name, body in world.bodies.items():
        for id in "bcd":
            assert await world.nodes[id].read(name) == body


@pytest.mark.expected_warnings("headrace.dataplane.peer_reader")
async def test_an_owner_that_fails_is_reported_once_each_time(
    world: NodesFixture, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failed read was a warning."""
    names = [str(number) for number in range(120)]
    for name in names:
        world.put(name, body_of(1000, 1)[:1000])
    of_a = [name for name in names if world.owner(name).id == "a"]
    reader = world.nodes["b"]
    for times in (1, 2):
        world.down = {"a"}
        for name in of_a[:4]:
            await reader.read(name)
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == times
        world.down = set()
        await reader.read(of_a[4])  # one answer soon after a failure is no change
        await pass_time(peer_reader.FAILING_S)
        await reader.read(of_a[5])
        del of_a[:6]
    assert reader.sources.reader.reads_failed == 8


@pytest.mark.expected_warnings("headrace.dataplane.peer_reader")
async def test_an_owner_with_another_view_is_no_warning(
    world: NodesFixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each change of the members one of two nodes has the older view for a moment. A failure after it is one."""
    caplog.set_level(logging.INFO)
    names = [str(number) for number in range(60)]
    for name in names:
        world.put(name, body_of(1000, 1)[:1000])
    first, second = [name for name in names if world.owner(name).id == "a"][:2]
    reader, desk = world.nodes["b"], world.nodes["a"].desk
    with monkeypatch.context() as patch:
        patch.setattr(desk, "_owns", lambda path, start: False)
        assert await reader.read(first) == world.bodies[first]
    records = [record for record in caplog.records if record.name == peer_reader.log.name]
    assert records and all(record.levelno == logging.INFO for record in records)
    world.down = {"a"}
    assert await reader.read(second) == world.bodies[second]
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.expected_warnings("headrace.dataplane.peer_reader")
async def test_a_replica_answers_for_a_dead_owner(tmp_path: Path) -> None:
    async with NodesFixture(tmp_path, replicas=2).running() as world:
        filled(world)
        for name in world.bodies:
            for owner in world.view.owners(b"/" + name.encode(), replicas=2):
                await world.nodes[owner.id].read(name)
        before = world.origin.bytes_read
        assert before == sum(map(len, world.bodies.values()))
        world.down = {"a"}
        for name, body in world.bodies.items():
            for id in "bcd":
                assert await world.nodes[id].read(name) == body
        assert world.origin.bytes_read == before


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_slow_owner_is_hedged(tmp_path: Path, replicas: int) -> None:
    async with NodesFixture(tmp_path, replicas=replicas).running() as world:
        filled(world)
        world.slow = {"a"}
        for name, body in world.bodies.items():
            for id in "bcd":
                assert await world.nodes[id].read(name) == body
        assert sum(node.sources.reader.reads_hedged for node in world.nodes.values()) > 0


async def test_a_changed_object_is_never_mixed_with_its_old_version(world: NodesFixture) -> None:
    world.put("x", b"old " * 300_000)
    readers = [node for node in world.nodes.values() if node is not world.owner("x")]
    assert await readers[0].read("x") == world.bodies["x"]
    entry = await readers[1].entry("x")  # knows the old version
    world.put("x", b"newer" * 300_000)
    # the owner has the old version, whole: who asks for it gets it, whole
    await readers[1].reads.fill(entry.id, 0, 1, FOREGROUND)
    for node in world.nodes.values():
        await node.namespace.listings.refresh(FileId(1))
        assert await node.read("x") == world.bodies["x"]
    # one that asks for the old version, of nodes that don't have it any more
    gone = await readers[2].entry("x")
    world.put("x", b"third" * 300_000)
    for node in world.nodes.values():
        node.store.free((await node.entry("x")).id)
        node.reads.forget([(await node.entry("x")).id])
    with pytest.raises(VersionChangedError):
        await readers[2].reads.fill(gone.id, 0, MIB, FOREGROUND)
    assert await readers[2].read("x") == world.bodies["x"]


async def test_a_file_that_is_gone_is_gone_everywhere(world: NodesFixture) -> None:
    filled(world, small=2, large=0)
    for node in world.nodes.values():
        await node.read("s/0")
    world.origin.delete("s/0")
    for node in world.nodes.values():
        folder = await node.entry("s")
        await node.namespace.listings.refresh(folder.id)
        with pytest.raises(PathNotFoundError):
            await node.entry("s/0")


async def test_a_joining_node_fills_from_those_that_owned_before(world: NodesFixture) -> None:
    filled(world, small=60)
    for name in world.bodies:
        await world.owner(name).read(name)
    before = world.origin.bytes_read
    owners = {name: world.owner(name).id for name in world.bodies}
    world.change("abcde")
    moved = [name for name in world.bodies if world.owner(name).id == "e"]
    assert moved
    assert all(world.owner(name).id in ("e", owners[name]) for name in world.bodies)
    for name in moved[: len(moved) // 2]:  # on demand
        assert await world.nodes["b"].read(name) == world.bodies[name]
    for node in world.nodes.values():  # and the rest by hand-over
        node.rebalance.on_view(world.view)
    for node in world.nodes.values():
        await node.rebalance.wait()
    for name in moved:
        id = (await world.nodes["e"].entry(name)).id
        cached = world.nodes["e"].store.index.cached(id)
        assert cached is not None and cached.complete and not cached.borrowed
        assert world.nodes["e"].content(id) == world.bodies[name]
        old = world.nodes[owners[name]]
        copy = old.store.index.cached((await old.entry(name)).id)
        assert copy is not None and copy.borrowed
    assert world.origin.bytes_read == before
    assert world.nodes["e"].store.statistics()["borrowed_bytes"] == 0


@pytest.mark.parametrize("size", [100_000, 3 * MIB + 1], ids=["small", "in ranges"])
async def test_a_new_owner_joins_what_the_old_one_is_fetching(world: NodesFixture, size: int) -> None:
    names = [str(number) for number in range(60)]
    owners = {name: world.owner(name) for name in names}
    world.change("abcde")
    name = next(name for name in names if world.owner(name).id == "e")
    old, new = owners[name], world.owner(name)
    world.put(name, body_of(size, 1)[:size])
    for node in (old, new):
        await node.entry(name)
    world.change("abcd")
    world.origin.held = asyncio.Event()
    early = asyncio.ensure_future(old.read(name))
    await until(lambda: world.origin.bytes_read >= size)
    world.change("abcde")
    late = asyncio.ensure_future(new.read(name))
    ranges = world.origin.reads[name]
    await until(lambda: new.peers.waiting >= ranges or world.origin.bytes_read != size)
    world.origin.held.set()
    assert await early == await late == world.bodies[name]
    assert world.origin.bytes_read == size


async def test_what_is_offered_before_the_view_came_is_taken_when_it_comes(world: NodesFixture) -> None:
    world.put("one", body_of(5000, 1)[:5000])
    await world.owner("one").read("one")
    other = next(node for node in world.nodes.values() if node is not world.owner("one"))
    entry, owned, looked = await other.entry("one"), False, asyncio.Event()

    def owns(path: bytes, start: int) -> bool:
        looked.set()
        return owned

    desk = NodePeerService(
        other.namespace, other.store, other.reads, owns=owns, on_invalidate=lambda *_: None
    )
    wanted = FileRange(b"/one", 5000, entry.version.mtime_ns, entry.version.token, 0, 5000)
    taking = asyncio.ensure_future(desk.take_over(OfferHandover([wanted], 1), peer=""))
    await looked.wait()
    owned = True
    assert (await taking).refused == []
    assert other.content(entry.id) == world.bodies["one"]
    assert world.origin.bytes_read == 5000


async def test_a_node_that_waits_for_another_is_not_waited_for(world: NodesFixture) -> None:
    """Its own owner may be the one that asks."""
    world.put("one", body_of(5000, 1)[:5000])
    owner = world.owner("one")
    asker = next(node for node in world.nodes.values() if node is not owner)
    entry = await asker.entry("one")
    world.origin.held = asyncio.Event()
    reading = asyncio.ensure_future(asker.read("one"))
    await until(lambda: owner.sources.comes_from_origin(b"/one", entry.version, 0, 5000))
    wanted = FileRange(b"/one", 5000, entry.version.mtime_ns, entry.version.token, 0, 5000)
    (refused,) = await asker.desk.open_many(Fetch([wanted], cached_only=True, epoch=1), peer="x")
    assert isinstance(refused, NotOwnerError)
    world.origin.held.set()
    assert await reading == world.bodies["one"]


async def test_what_comes_back_from_a_node_that_went_is_owned_and_handed_over_again(
    world: NodesFixture,
) -> None:
    filled(world, small=60)
    for name in world.bodies:
        await world.owner(name).read(name)
    before = world.origin.bytes_read
    for members in ("abcde", "abcd", "abcdf"):  # e takes its share and dies; f takes what e had
        world.change(members)
        world.down = set(world.nodes) - set(members)
        for id in members:
            world.nodes[id].rebalance.on_view(world.view)
        for id in members:
            await world.nodes[id].rebalance.wait()
        for name in world.bodies:
            owner = world.owner(name)
            cached = owner.store.index.cached((await owner.entry(name)).id)
            assert cached is not None and cached.complete and not cached.borrowed
            assert owner.content(cached.id) == world.bodies[name]
    assert any(world.owner(name).id == "f" for name in world.bodies)
    assert world.origin.bytes_read == before


async def test_what_a_dead_node_held_is_copied_from_its_replicas(tmp_path: Path) -> None:
    async with NodesFixture(tmp_path, replicas=2).running() as world:
        filled(world, small=40)
        for name in world.bodies:
            for owner in world.view.owners(b"/" + name.encode(), replicas=2):
                await world.nodes[owner.id].read(name)
        before = world.origin.bytes_read
        world.down = {"a"}
        world.change("bcd")
        for id in "bcd":
            world.nodes[id].rebalance.on_view(world.view)
        for id in "bcd":
            await world.nodes[id].rebalance.wait()
        for name, body in world.bodies.items():
            for owner in world.view.owners(b"/" + name.encode(), replicas=2):
                node = world.nodes[owner.id]
                file = (await node.entry(name)).id
                assert node.store.index.cached(file) is not None, (name, owner.id)
                assert node.content(file) == body
        assert world.origin.bytes_read == before


async def test_borrowed_files_go_first(world: NodesFixture) -> None:
    filled(world, small=40, large=8)
    node = world.nodes["a"]
    for name in world.bodies:
        await node.read(name)
    owned = [name for name in world.bodies if world.owner(name) is node]
    node.store.volumes[0].capacity_bytes = node.store.used_bytes
    while node.store.space.evict_if_needed():
        pass
    ids = {name: (await node.entry(name)).id for name in owned}
    assert all(node.store.index.cached(id) is not None for id in ids.values())
    assert node.store.space.evicted_files > 0


@pytest.mark.parametrize("wholly", [False, True])
async def test_what_a_leaving_node_has_of_a_file_is_handed_over(tmp_path: Path, *, wholly: bool) -> None:
    """Also of one that is not whole there: else its bytes would be fetched from the origin again."""
    async with NodesFixture(tmp_path, nodes="abc").running() as world:
        name, size = "large", 24 * MIB + 5
        world.put(name, body_of(size, 3)[:size])
        for node in world.nodes.values():
            node.rebalance.on_view(world.view)
        leaving = world.owner(name)
        entry = await leaving.entry(name)
        parts = [(0, size)] if wholly else [(2 * MIB, 7 * MIB), (9 * MIB, 10 * MIB), (20 * MIB, size)]
        for start, end in parts:
            await leaving.reads.fill(entry.id, start, end, FOREGROUND)
        before = world.origin.bytes_read
        assert before < size or wholly
        world.drain(leaving.id)
        for node in world.nodes.values():
            node.rebalance.on_view(world.view)
        await leaving.rebalance.wait()
        assert world.origin.bytes_read == before  # it asks for nothing that nobody wanted
        assert leaving.rebalance.files_refused == 0
        assert leaving.rebalance.bytes_handed_over >= sum(end - start for start, end in parts)
        world.down.add(leaving.id)
        for node in world.nodes.values():
            if node is not leaving:
                assert await node.read(name) == world.bodies[name]
        assert world.origin.bytes_read == size


async def test_a_joining_node_is_given_what_is_being_filled(tmp_path: Path) -> None:
    async with NodesFixture(tmp_path, nodes="ab").running() as world:
        name = next(
            f"large-{number}"
            for number in range(100)
            if world.view_with("abc").owners(b"/large-%d" % number)[0].id == "c"
        )
        size = 24 * MIB
        world.put(name, body_of(size, 3)[:size])
        for node in world.nodes.values():
            node.rebalance.on_view(world.view)
        owner = world.owner(name)
        entry = await owner.entry(name)
        await owner.reads.fill(entry.id, 4 * MIB, 12 * MIB, FOREGROUND)
        world.change("abc")
        for node in world.nodes.values():
            node.rebalance.on_view(world.view)
        await owner.rebalance.wait()
        world.down.add(owner.id)
        assert await world.nodes["c"].read(name) == world.bodies[name]
        assert world.origin.bytes_read == size


async def test_a_slow_node_that_hands_over_is_not_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ranges of it come a little late; the origin is asked for few of them again."""
    monkeypatch.setattr(peer_reader, "HEDGED_BYTES_MIN", 2 * MIB)
    async with NodesFixture(tmp_path, nodes="ab").running() as world:
        for number in range(4):
            world.put(f"large-{number}", body_of(16 * MIB, number)[: 16 * MIB])
        for name, body in world.bodies.items():
            assert await world.owner(name).read(name) == body
        size_bytes = world.origin.bytes_read
        assert size_bytes == sum(map(len, world.bodies.values()))
        world.slow, world.slow_s = {"a", "b"}, 0.2
        world.change("abc")
        for name, body in world.bodies.items():
            assert await world.nodes["c"].read(name) == body
        assert world.nodes["c"].sources.reader.reads_hedged <= 2
        assert world.origin.bytes_read <= 1.05 * size_bytes
