"""A file of several segments: a node that wants all of it asks all of their owners at one time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.model import Arrived
from headrace.dataplane import rebalance, route
from headrace.dataplane.cluster_source import ClusterSourceFactory
from headrace.dataplane.intent import FOREGROUND
from headrace.ring.view import NodeInfo
from headrace.testing.waiting import until
from headrace.wire.peer_messages import FileRange
from tests.unit.dataplane import nodes_fixture
from tests.unit.dataplane.nodes_fixture import MIB, NodesFixture, body_of

pytestmark = pytest.mark.timeout(60)

SEGMENT = 4 * MIB


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NodesFixture]:
    for module in (route, rebalance, nodes_fixture):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT)
    monkeypatch.setattr(ClusterSourceFactory, "segment_bytes", SEGMENT)
    async with NodesFixture(tmp_path).running() as world:
        yield world


async def test_no_range_lies_in_two_segments(world: NodesFixture) -> None:
    size = 6 * SEGMENT - 5
    world.put("model", body_of(size, 3)[:size])
    for node in world.nodes.values():
        id = (await node.entry("model")).id
        for start in range(MIB, size, 2 * MIB):  # ranges of two blocks that begin at odd ones
            await node.reads.fill(id, start, min(size, start + 2 * MIB), FOREGROUND)
        assert await node.read("model") == world.bodies["model"]
    assert world.origin.bytes_read == size


async def test_all_owners_send_at_one_time_and_the_origin_once(world: NodesFixture) -> None:
    size = 6 * SEGMENT - 5
    world.put("model", body_of(size, 3)[:size])
    owners = [world.view.owners(b"/model", segment)[0].id for segment in range(6)]
    assert len(set(owners)) > 2
    reader = world.nodes["a"]
    real, asked = reader.peers.fetch, set()

    async def fetch(node: NodeInfo, wanted: FileRange, **rest: Any) -> Arrived:
        asked.add(wanted.start // SEGMENT)
        return await real(node, wanted, **rest)

    reader.peers.fetch = fetch  # type: ignore[method-assign]
    world.origin.held = asyncio.Event()  # so that nobody answers before all were asked
    id = (await reader.entry("model")).id
    reading = asyncio.ensure_future(reader.reads.fill(id, 0, -(-size // 4)))  # a quarter: in earnest
    await until(lambda: asked == {segment for segment in range(6) if owners[segment] != "a"})
    world.origin.held.set()
    await reading
    for node in world.nodes.values():
        assert await node.read("model") == world.bodies["model"], node.id
    assert world.origin.bytes_read == size
