"""An owner lets loads and planned fetches of other nodes wait behind the reads of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from tests.unit.dataplane.nodes_fixture import NodesFixture, OneNode, body_of

IN_FLIGHT = 8
"""Reads that each gate admits at first."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[NodesFixture]:
    async with NodesFixture(tmp_path).running() as world:
        yield world


class OwnedFiles:
    """Small files that one node owns, and the other nodes. The origin's answers are held."""

    def __init__(self, world: NodesFixture) -> None:
        self.world = world
        self.owner: OneNode = world.nodes["a"]
        self.others = [node for node in world.nodes.values() if node is not self.owner]
        self.names: list[str] = []
        number = 0
        while len(self.names) < 3 * IN_FLIGHT:
            name = f"s/{number}"
            if world.owner(name) is self.owner:
                world.put(name, body_of(1000 + number, number)[: 1000 + number])
                self.names.append(name)
            number += 1
        world.origin.held = asyncio.Event()

    def release(self) -> None:
        assert self.world.origin.held is not None
        self.world.origin.held.set()

    async def load(self, node: OneNode, name: str) -> bytes:
        entry = await node.entry(name)
        await node.reads.load(entry, job="plan")
        return node.content(entry.id)

    async def begin_loads(self) -> dict[str, asyncio.Future[bytes]]:
        """Load twice as many files on two nodes as the owner reads at once. Return their loads, in the order in which
        the owner begins them."""
        loads: dict[str, asyncio.Future[bytes]] = {}
        for node, names in zip(
            self.others, (self.names[:IN_FLIGHT], self.names[IN_FLIGHT : 2 * IN_FLIGHT]), strict=False
        ):
            for name in names:
                loads[name] = asyncio.ensure_future(self.load(node, name))
            await self.wait_for_requests(node)
        await until(lambda: len(self.begun()) == IN_FLIGHT)
        return loads

    async def wait_for_requests(self, node: OneNode) -> None:
        await until(lambda: node.peers.waiting == IN_FLIGHT)

    def begun(self) -> list[str]:
        """Return the files that were requested from the origin, in order."""
        return list(self.world.origin.reads)


async def test_reads_of_readers_precede_what_other_nodes_load(world: NodesFixture) -> None:
    """A reader of the owner, one of a third node, and one that comes to wait for a load."""
    files = OwnedFiles(world)
    loads = await files.begin_loads()
    own, third, promoted = files.names[-1], files.names[-2], files.names[2 * IN_FLIGHT - 1]
    reads = {own: asyncio.ensure_future(files.owner.read(own))}
    reads[third] = asyncio.ensure_future(files.others[2].read(third))
    reads[promoted] = asyncio.ensure_future(files.others[1].read(promoted))
    await pass_time(0.1)
    assert len(files.begun()) == IN_FLIGHT
    files.release()
    for name, read in [*reads.items(), *loads.items()]:
        assert await read == world.bodies[name]
    assert set(files.begun()[IN_FLIGHT : IN_FLIGHT + 3]) == set(reads)
    assert world.origin.bytes_read == sum(len(world.bodies[name]) for name in [*loads, own, third])


async def test_a_load_is_not_left_waiting_for_ever(world: NodesFixture) -> None:
    """The owner's readers leave it no room. After half of the time allowed it is requested as a read is, so the origin
    is not asked by two nodes."""
    files = OwnedFiles(world)
    reads = {name: asyncio.ensure_future(files.owner.read(name)) for name in files.names[:IN_FLIGHT]}
    await until(lambda: len(files.begun()) == IN_FLIGHT)
    name, node = files.names[-1], files.others[0]
    load = asyncio.ensure_future(files.load(node, name))
    await pass_time(2.0)
    assert node.peers.waiting == 1
    await pass_time(1.0)
    assert node.peers.waiting == 2
    late = {name: asyncio.ensure_future(files.owner.read(name)) for name in files.names[IN_FLIGHT:-1]}
    await pass_time(0.1)
    files.release()
    for read_name, read in [*reads.items(), *late.items(), (name, load)]:
        assert await read == world.bodies[read_name]
    assert files.begun().index(name) == IN_FLIGHT
    assert world.origin.bytes_read == sum(len(world.bodies[name]) for name in files.names)
