"""The periodic upkeep of a node whose parts fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.node import upkeep
from headrace.node.upkeep import Upkeep
from headrace.testing.waiting import until
from tests.unit.jobs.sealing_fixture import SealingFixture


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SealingFixture]:
    async with SealingFixture(tmp_path).running() as node:
        yield node


@pytest.mark.parametrize("is_short", [False, True], ids=["with space", "short of space"])
@pytest.mark.expected_warnings("the periodic upkeep failed")
async def test_the_store_is_synced_while_the_disk_of_the_seals_is_dead(
    node: SealingFixture,
    is_short: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "UPKEEP_INTERVAL_S", 0.01)
    monkeypatch.setattr(upkeep, "SYNC_INTERVAL_S", 0.0)
    monkeypatch.setattr(node.store.space, "is_short", lambda: is_short)
    node.lose_catalogue()
    entry = await node.entry("d/b")
    await node.reads.load(entry)
    synced_ns = node.store.index.state.synced_ns

    async def revoke_none() -> bool:
        return False

    work = Upkeep(
        *(node.store, node.reads, node.disk),
        write=None,
        cluster=None,
        revoke_seal=revoke_none,
        release_seals=node.jobs.sealing.release_unused,
        on_corrupt=lambda error: pytest.fail(str(error)),
    )
    work.start()
    try:
        await until(lambda: node.store.index.state.synced_ns > synced_ns)
    finally:
        await work.stop()
