"""A node keeps the listing of a directory fresh that another node owns: both list it again in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.virtual_loop import pass_time
from tests.unit.dataplane.nodes_fixture import NodesFixture


@pytest.mark.usefixtures("virtual_boot_clock")
async def test_no_open_waits_for_the_owner_of_a_directory(tmp_path: Path) -> None:
    async with NodesFixture(tmp_path).running() as world:
        for number in range(3):
            world.put(f"s/{number}", b"%d" % number)
        owners = [id for id, node in world.nodes.items() if node.names.owns(b"/s")]
        (reader, *_) = (node for id, node in world.nodes.items() if id not in owners)
        for _ in range(240):
            ids = [(await reader.entry(f"s/{number}")).id for number in range(3)]
            reader.namespace.refresh_ahead.note_opens(ids)
            await pass_time(30)
            directory = reader.namespace.tree.directory_at(b"/s")
            assert directory is not None and reader.namespace.tree.is_fresh(directory)
        seconds, age_s = 240 * 30, 3600
        assert 4 <= world.origin.listings <= 2 * (1 + seconds / (age_s * 2 / 3))  # of the root, and of /s
