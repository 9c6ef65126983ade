"""A pinned file stays so on each owner: after a change of the members, of a name, of etcd's data."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.testing.waiting import until
from tests.unit.jobs.many_runners import JobClusterFixture

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[JobClusterFixture]:
    async with JobClusterFixture(tmp_path).running() as world:
        yield world


async def pinned_by(w: JobClusterFixture, name: str) -> set[str]:
    return {id for id, runner in w.runners.items() if await runner.is_pinned(name)}


async def until_pinned(w: JobClusterFixture, names: list[str]) -> None:
    """By their owners and nobody else; the test's time limit is the limit."""

    async def all_are() -> bool:
        return all([await pinned_by(w, name) == set(w.owners(name)) for name in names])

    await until(all_are)


async def test_owners_pin_and_a_node_that_joins_pins_what_it_comes_to_own(world: JobClusterFixture) -> None:
    names, others = world.put_many(30), world.put_many(5, folder="e")
    row = await world.agree(await world.runners["b"].jobs.submit("pin", "/d", {}))
    assert (row.state, row.files_done, row.failed_files) == ("done", 30, 0)
    for name in names:
        assert await pinned_by(world, name) == set(world.owners(name))
    await world.join("d")
    assert any(world.owners(name) == ["d"] for name in names)
    await until_pinned(world, names)
    for name in names:
        assert await world.runners[world.owners(name)[0]].has(name)
    for name in others:
        assert await pinned_by(world, name) == set()


async def test_a_pin_tells_the_copies_that_it_asks_for(world: JobClusterFixture) -> None:
    world.put_many(3)
    pins = world.runners["b"].jobs.pins
    await world.agree(await world.runners["b"].jobs.submit("pin", "/d", {"replicas": "2"}))
    assert (pins.copies(b"/d/001"), pins.copies(b"/e/001")) == (2, 0)
    await world.agree(await world.runners["b"].jobs.submit("pin", "/d/001", {}))
    assert (pins.copies(b"/d/001"), pins.copies(b"/d/002")) == (0, 2)


async def test_a_new_version_of_what_is_pinned_is_pinned(world: JobClusterFixture) -> None:
    names = world.put_many(10)
    await world.agree(await world.runners["a"].jobs.submit("pin", "/d", {}))
    old = {id: (await runner.entry("d/004")).id for id, runner in world.runners.items()}
    world.put("d/004", os.urandom(5000))
    world.put("d/new", os.urandom(700))
    for runner in world.runners.values():
        await runner.namespace.listings.refresh((await runner.entry("d")).id)
    assert all([(await runner.entry("d/004")).id != old[id] for id, runner in world.runners.items()])
    await until_pinned(world, [*names, "d/new"])
    assert await world.runners[world.owners("d/004")[0]].has("d/004")


async def test_unpin_of_a_part_leaves_the_rest_pinned(world: JobClusterFixture) -> None:
    above, below = world.put_many(10), world.put_many(10, folder="d/e")
    await world.agree(await world.runners["a"].jobs.submit("pin", "/d", {}))
    row = await world.agree(await world.runners["c"].jobs.submit("unpin", "/d/e", {}))
    assert (row.state, row.files_done) == ("done", 10)
    world.see("abc")
    await world.join("d")
    await until_pinned(world, above)
    for name in below:
        assert await pinned_by(world, name) == set()
    await world.agree(await world.runners["c"].jobs.submit("unpin", "/", {}))
    for name in above:
        assert await pinned_by(world, name) == set()


@pytest.mark.expected_warnings("pins can't be kept")
async def test_an_error_that_nobody_expects_ends_no_pin(
    world: JobClusterFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.jobs.pins.RETRY_S", 0.05)
    pins, failed = world.runners["a"].jobs.pins, asyncio.Event()
    reconcile = pins._reconcile

    async def fail_once(path: str) -> bool:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EIO, "the disk of the index")
        return await reconcile(path)

    monkeypatch.setattr(pins, "_reconcile", fail_once)
    names = world.put_many(10)
    await world.agree(await world.runners["b"].jobs.submit("pin", "/d", {}))
    await failed.wait()
    for name in names:
        world.put(name, os.urandom(5000))
    for runner in world.runners.values():
        await runner.namespace.listings.refresh((await runner.entry("d")).id)
    assert any("a" in world.owners(name) for name in names)
    await until_pinned(world, names)


async def test_pins_that_etcd_lost_are_put_back(world: JobClusterFixture) -> None:
    world.put_many(3)
    await world.agree(await world.runners["a"].jobs.submit("pin", "/d", {}))
    before = world.records.values["pins/d"]
    world.records.lose()
    await until(lambda: world.records.values.get("pins/d") == before)


async def test_a_cancelled_pin_leaves_no_record(world: JobClusterFixture) -> None:
    world.put_many(20)
    world.origin.hold_after = 5
    id = await world.runners["a"].jobs.submit("pin", "/d", {})
    await world.origin.held.wait()
    await world.until("a", id, lambda row: row.files_total > 0)
    await world.runners["a"].jobs.cancel(id)
    assert (await world.agree(id)).state == "cancelled"
    assert "pins/d" not in world.records.values
