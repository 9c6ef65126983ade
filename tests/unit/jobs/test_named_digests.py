"""fsck finds bytes that came wrong together with the checksum of the wrong bytes (finding 18 of the audit)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.model import FileId
from headrace.base.write_modes import WriteModes
from headrace.jobs.jobs import Jobs
from headrace.seal.catalogue import Catalogue
from headrace.wire.messages import JobState
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.dataplane.spoiled_origin import SpoiledReadPath

NAMES = {"right": 5000, "small": 5000, "large": 3 * MIB + 5}


@pytest.mark.parametrize("trusts", [True, False])
async def test_fsck_blesses_no_poisoned_file(tmp_path: Path, *, trusts: bool) -> None:
    """trusts: a file matches its ETag. Where none does, ETags are no digests of that origin, and nothing is dropped."""
    world = SpoiledReadPath(tmp_path, verify_origin=False)
    evicted: list[FileId] = []

    async def tell(ids: list[FileId]) -> None:
        evicted.extend(ids)

    jobs = Jobs(
        world.namespace,
        world.store,
        world.reads,
        world.disk,
        catalogue=Catalogue(""),
        modes=WriteModes.parse(""),
        on_damaged=tell,
    )
    truth = {name: world.hold(name, size) for name, size in NAMES.items()}
    world.hold("unnamed", 5000, token='"v1"')
    world.hold("parts", 2 * MIB, token='"00000000000000000000000000000000-2"')
    ids = {}
    for name in (*NAMES, "unnamed", "parts"):
        world.spoils.share = 0.0 if name == "right" and trusts else 1.0
        entry = await world.entry(name)
        await world.reads.load(entry)
        ids[entry.id] = name
    states: list[JobState] = [state async for state in jobs.run("fsck", "/", {})]
    dropped = {ids[id] for id in evicted}
    assert dropped == ({"small", "large"} if trusts else set())
    assert {path for path, _ in states[-1].failed} == {f"/{name}" for name in dropped}
    world.spoils.share = 0.0
    for name in dropped:
        assert await world.loaded(name) == truth[name]
    assert not [state async for state in jobs.run("fsck", "/", {})][-1].failed
    await world.reads.close()
    world.disk.shutdown()
    world.store.close()
