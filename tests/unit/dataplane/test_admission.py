"""Reads of files that the policy does not admit: the right bytes, also of more than the spill can hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.dataplane.intent import BACKGROUND
from headrace.policy.tenant_division import TenantDivision
from headrace.store.store import Store
from tests.unit.dataplane.read_fixture import MIB, ReadPathFixture

pytestmark = pytest.mark.timeout(60)


class Selective(TenantDivision):
    """Admits no file, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(lambda _: EvictionGroup(), 64 * MIB)
        self.asked: list[FileId] = []

    def admits(self, id: FileId, *, is_read: bool = True) -> bool:
        self.asked.append(id)
        return False


@pytest.fixture
def memory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o700)
        yield folder


def body_of(store: Store, id: FileId) -> tuple[bool, bytes]:
    """Return whether a file is in the spill, and its bytes."""
    record = store.index.cached(id)
    assert record is not None
    volume = store.volumes[record.volume]
    path = volume.data_path(id) if record.complete else volume.part_path(id)
    return volume is store.spill, Path(path).read_bytes()


@pytest.mark.parametrize("size_bytes", [1000, 3 * MIB + 7])
async def test_a_reader_gets_the_bytes_from_the_spill(tmp_path: Path, memory: str, size_bytes: int) -> None:
    division = Selective()
    async with ReadPathFixture(tmp_path, division=division, spill_folder=memory).running() as world:
        body = os.urandom(size_bytes)
        world.origin.hold("f", body)
        id = (await world.entry("f")).id
        for start in range(0, size_bytes, MIB):
            await world.reads.fill(id, start, min(start + MIB, size_bytes))
        assert body_of(world.store, id) == (True, body)
        assert division.asked == [id], "once for all ranges of a read"


async def test_one_read_of_more_than_the_spill_goes_to_a_disk(tmp_path: Path, memory: str) -> None:
    fixture = ReadPathFixture(tmp_path, division=Selective(), spill_folder=memory, capacity_bytes=128 * MIB)
    async with fixture.running() as world:
        assert world.store.spill is not None
        body = os.urandom(world.store.spill.capacity_bytes // 2 + MIB)
        world.origin.hold("f", body)
        id = (await world.entry("f")).id
        await world.reads.fill(id, 0, len(body))
        assert body_of(world.store, id) == (False, body)


async def test_what_is_loaded_is_admitted(tmp_path: Path, memory: str) -> None:
    division = Selective()
    async with ReadPathFixture(tmp_path, division=division, spill_folder=memory).running() as world:
        world.origin.hold("f", b"x" * 5000)
        await world.reads.load(await world.entry("f"))
        assert body_of(world.store, (await world.entry("f")).id) == (False, b"x" * 5000)
        assert not division.asked and not BACKGROUND.may_spill
