"""What is pinned stays so on whoever owns it: after a change of the members, of a name, of etcd's data."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.unit.jobs.many_runners import JobClusterFixture


def run(world: JobClusterFixture, test: Callable[[JobClusterFixture], Awaitable[None]]) -> None:
    asyncio.run(world.run(test))


async def pinned_by(w: JobClusterFixture, name: str) -> set[str]:
    return {id for id, runner in w.runners.items() if await runner.is_pinned(name)}


async def until_pinned(w: JobClusterFixture, names: list[str]) -> None:
    """By their owners and nobody else; the test's time limit is the limit."""
    while any([await pinned_by(w, name) != set(w.owners(name)) for name in names]):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def test_owners_pin_and_a_node_that_joins_pins_what_it_comes_to_own(tmp_path: Path) -> None:
    async def test(w: JobClusterFixture) -> None:
        names, others = w.put_many(30), w.put_many(5, folder="e")
        row = await w.agree(await w.runners["b"].jobs.submit("pin", "/d", {}))
        assert (row.state, row.files_done, row.failed_files) == ("done", 30, 0)
        for name in names:
            assert await pinned_by(w, name) == set(w.owners(name))
        await w.join("d")
        assert any(w.owners(name) == ["d"] for name in names)
        await until_pinned(w, names)
        for name in names:
            assert await w.runners[w.owners(name)[0]].has(name)
        for name in others:
            assert await pinned_by(w, name) == set()

    run(JobClusterFixture(tmp_path), test)


def test_a_new_version_of_what_is_pinned_is_pinned(tmp_path: Path) -> None:
    async def test(w: JobClusterFixture) -> None:
        names = w.put_many(10)
        await w.agree(await w.runners["a"].jobs.submit("pin", "/d", {}))
        old = {id: (await runner.entry("d/004")).id for id, runner in w.runners.items()}
        w.put("d/004", os.urandom(5000))
        w.put("d/new", os.urandom(700))
        for runner in w.runners.values():
            await runner.namespace.refresh((await runner.entry("d")).id)
        assert all([(await runner.entry("d/004")).id != old[id] for id, runner in w.runners.items()])
        await until_pinned(w, [*names, "d/new"])
        assert await w.runners[w.owners("d/004")[0]].has("d/004")

    run(JobClusterFixture(tmp_path), test)


def test_unpin_of_a_part_leaves_the_rest_pinned(tmp_path: Path) -> None:
    async def test(w: JobClusterFixture) -> None:
        above, below = w.put_many(10), w.put_many(10, folder="d/e")
        await w.agree(await w.runners["a"].jobs.submit("pin", "/d", {}))
        row = await w.agree(await w.runners["c"].jobs.submit("unpin", "/d/e", {}))
        assert (row.state, row.files_done) == ("done", 10)
        w.see("abc")
        await w.join("d")
        await until_pinned(w, above)
        for name in below:
            assert await pinned_by(w, name) == set()
        await w.agree(await w.runners["c"].jobs.submit("unpin", "/", {}))
        for name in above:
            assert await pinned_by(w, name) == set()

    run(JobClusterFixture(tmp_path), test)


def test_pins_that_etcd_lost_are_put_back(tmp_path: Path) -> None:
    async def test(w: JobClusterFixture) -> None:
        w.put_many(3)
        await w.agree(await w.runners["a"].jobs.submit("pin", "/d", {}))
        before = w.records.values["pins/d"]
        w.records.lose()
        while w.records.values.get("pins/d") != before:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    run(JobClusterFixture(tmp_path), test)


def test_a_cancelled_pin_leaves_no_record(tmp_path: Path) -> None:
    async def test(w: JobClusterFixture) -> None:
        w.put_many(20)
        w.origin.hold_after = 5
        id = await w.runners["a"].jobs.submit("pin", "/d", {})
        await w.origin.held.wait()
        await w.until("a", id, lambda row: row.files_total > 0)
        await w.runners["a"].jobs.cancel(id)
        assert (await w.agree(id)).state == "cancelled"
        assert "pins/d" not in w.records.values

    run(JobClusterFixture(tmp_path), test)
