"""Seals of files that lie in a memory tier: the files leave it, or the job says soon why they can't."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.base.errors import NoSpaceError, StoreError
from headrace.base.write_modes import WriteModes
from headrace.dataplane.tier_mover import TierMover
from headrace.jobs import leave_memory
from headrace.jobs.auto_seal import AutoSealRules
from headrace.jobs.jobs import Jobs
from headrace.jobs.seal import Sealing
from headrace.policy.current import CurrentPolicy
from headrace.seal.catalogue import SealId
from headrace.testing.waiting import wait_for
from headrace.wire.messages import JobState
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.jobs.sealing_fixture import NAMES, SealingFixture

pytestmark = [pytest.mark.timeout(90), pytest.mark.real_time]


class MemoryFixture(SealingFixture):
    """The jobs of a node with a disk of 256 MiB, and a tier of 512 MiB in memory."""

    memory_bytes = 512 * MIB

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mover = TierMover(self.store, self.disk, self.gate, bytes_s=1 << 30)

    async def tiers(self) -> set[str]:
        """Return the tiers of the files with bytes below /d."""
        tiers = set()
        for name in (name for name, size_bytes in NAMES.items() if size_bytes and name.startswith("d/")):
            cached = self.store.index.cached((await self.entry(name)).id)
            tiers.add("" if cached is None else self.store.volumes[cached.volume].tier)
        return tiers

    async def failed_seal(self) -> JobState:
        state = await self.run("seal")
        assert state.failed_files and self.stored("image-1") is None
        return state


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MemoryFixture]:
    async with MemoryFixture(tmp_path).running() as node:
        await node.run("load", "/")
        assert await node.tiers() == {"memory"}
        yield node
        await node.mover.stop()


async def test_what_is_sealed_leaves_memory(node: MemoryFixture) -> None:
    node.mover.start()
    state = await node.run("seal")
    assert not state.failed_files, state
    assert await node.tiers() == {""}
    used_bytes = [disk.used_bytes for disk in node.store.disks]
    assert used_bytes[1] == 4096  # that of /other
    for name in (name for name in NAMES if name.startswith("d/") and NAMES[name]):
        assert node.content((await node.entry(name)).id) == node.truth[name]


async def test_a_seal_larger_than_the_disks_is_refused_before_anything_moves(node: MemoryFixture) -> None:
    for number in range(4):
        node.hold(f"d/more{number}", 80 * MIB)
    await node.run("sync", "/")
    await node.run("load", "/")
    node.mover.start()
    # its first walk would move what a seal keeps, also before it is refused
    await asyncio.to_thread(wait_for, lambda: not node.mover.is_walking)
    with pytest.raises(NoSpaceError, match="there is room for 25"):
        await node.run("seal")
    assert await node.tiers() == {"memory"}


async def test_files_that_can_not_leave_memory_fail_soon(
    node: MemoryFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover does not run. The first files wait for it; the others don't wait again."""
    monkeypatch.setattr(leave_memory, "STUCK_S", 0.5)
    for number in range(200):
        node.hold(f"d/more{number}", 10)
    await node.run("sync", "/")
    await node.run("load", "/")
    begun_s = time.monotonic()
    state = await node.failed_seal()
    assert time.monotonic() - begun_s < 10
    assert state.failed_files == 204


async def test_a_file_that_changes_meanwhile_is_not_waited_for(node: MemoryFixture) -> None:
    entry = await node.entry("d/b")
    leaving = asyncio.create_task(leave_memory.LeavingFiles(node.store).wait_for(entry.id))
    await asyncio.sleep(0.2)
    node.store.free(entry.id)
    with pytest.raises(StoreError, match="changed"):
        await asyncio.wait_for(leaving, 5)


async def test_a_data_set_in_memory_is_sealed_without_a_command(
    node: MemoryFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sealing, "trouble", "")
    monkeypatch.setattr("headrace.jobs.automatic_seals.FILES_MIN", 3)
    jobs = Jobs(
        *(node.namespace, node.store, node.reads, node.disk),
        catalogue=node.catalogue,
        modes=WriteModes.parse(""),
        on_damaged=node._damaged,
        auto_seal=AutoSealRules(CurrentPolicy(), by_default=True, quiet_s=0.2),
    )
    node.mover.start()
    jobs.auto_seal.start()
    try:
        async with asyncio.timeout(20):
            while not jobs.auto_seal.status() or not jobs.auto_seal.status()[0]["seal"]:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
    finally:
        await jobs.auto_seal.stop()
    assert node.catalogue.seals() == [SealId("auto-all", 1)]
    assert await node.tiers() == {""}
