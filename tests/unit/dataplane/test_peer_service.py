"""A node closes again what it opens for its peers, whatever fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.errors import EvictedError, HeadraceError, NotOwnerError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry
from headrace.dataplane.intent import FOR_PEER
from headrace.dataplane.peer_service import NodePeerService
from headrace.wire.peer_messages import Fetch, FileRange
from tests.unit.dataplane.read_fixture import ReadPathFixture


def service_of(node: ReadPathFixture) -> NodePeerService:
    return NodePeerService(
        node.namespace,
        node.store,
        node.reads,
        owns=lambda path, start: False,
        on_invalidate=lambda path, below: None,
    )


def block_of(entry: Entry, block: int) -> FileRange:
    version, start = entry.version, block * BLOCK_SIZE_BYTES
    end = start + BLOCK_SIZE_BYTES
    return FileRange(b"/f", version.size_bytes, version.mtime_ns, version.token, start, end)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_a_range_that_is_not_here_leaves_no_descriptor_open(
    tmp_path: Path, *, is_evicted: bool
) -> None:
    """A part of the file is here. A thread that needs its space evicts it, and the loop has not heard of it yet."""
    async with ReadPathFixture(tmp_path).running() as node:
        node.origin.hold("f", bytes(4 * BLOCK_SIZE_BYTES))
        entry = await node.entry("f")
        await node.reads.serve(entry.id, 0, BLOCK_SIZE_BYTES, FOR_PEER)
        service = service_of(node)
        (file,) = await service.open_many(Fetch([block_of(entry, 0)], cached_only=True, epoch=1), peer="b")
        assert not isinstance(file, HeadraceError)
        file.close()
        fill = node.reads._fills.get(entry.id)
        assert fill is not None
        if is_evicted:
            fill.writer.close()
        before = open_files()
        (answer,) = await service.open_many(Fetch([block_of(entry, 3)], cached_only=True, epoch=1), peer="b")
        assert isinstance(answer, EvictedError if is_evicted else NotOwnerError)
        assert open_files() == before
