"""Reads of a tenant at its limit: the right bytes, and no more in the cache than it may have."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.dataplane.intent import FOREGROUND
from headrace.policy.dues import Entitlement
from headrace.policy.tenant_division import TenantDivision
from tests.unit.dataplane.read_fixture import MIB, ReadPathFixture

pytestmark = pytest.mark.timeout(60)

LIMIT_BYTES = 9 * MIB // 2
SIZES = {"small": 3 * MIB // 4, "large": 3 * MIB + 7}


class OneTenant:
    """All files are of tenant a."""

    def __init__(self) -> None:
        self.division = TenantDivision(lambda _: EvictionGroup(tenants=("a",)), 64 * MIB)
        self.division.update({"a": Entitlement(limit=LIMIT_BYTES)})


def used_bytes(world: ReadPathFixture) -> int:
    return world.store._files.accounts.groups.used_bytes("a")


def cached_anywhere(world: ReadPathFixture, id: FileId) -> bytes:
    record = world.store.index.cached(id)
    assert record is not None
    volume = world.store.volumes[record.volume]
    path = volume.data_path(id) if record.complete else volume.part_path(id)
    return Path(path).read_bytes()


async def test_files_of_a_tenant_make_room_for_each_other(tmp_path: Path) -> None:
    async with ReadPathFixture(tmp_path, division=OneTenant().division).running() as world:
        bodies = {f"{name}-{number}": os.urandom(SIZES[name]) for number in range(4) for name in SIZES}
        for name, body in bodies.items():
            world.origin.hold(name, body)
        for name, body in bodies.items():
            id = (await world.entry(name)).id
            await world.reads.fill(id, 0, len(body))
            assert cached_anywhere(world, id) == body
            assert 0 < used_bytes(world) <= LIMIT_BYTES


async def test_what_exceeds_a_limit_is_read_without_being_cached(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        os.chmod(memory, 0o700)
        fixture = ReadPathFixture(tmp_path, division=OneTenant().division, spill_folder=memory)
        async with fixture.running() as world:
            bodies = {name: os.urandom(size_bytes) for name, size_bytes in SIZES.items()}
            for name, body in {**bodies, "pinned": os.urandom(4 * MIB)}.items():
                world.origin.hold(name, body)
            pinned = await world.entry("pinned")
            await world.reads.load(pinned)
            assert world.store.pin(pinned.id, True)
            before = used_bytes(world)
            for name, body in bodies.items():
                id = (await world.entry(name)).id
                await world.reads.fill(id, 0, len(body), FOREGROUND)
                record = world.store.index.cached(id)
                assert record is not None
                assert world.store.volumes[record.volume] is world.store.spill
                assert cached_anywhere(world, id)[: len(body)] == body
                assert used_bytes(world) == before
