"""Loads of files wait for those of files with a higher priority."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import Arrived, FileId
from headrace.base.priority import Priority
from headrace.dataplane.source import NoAccounts
from headrace.jobs.files import AT_ONCE, FileWork, LoadJob
from headrace.namespace.mounts import Mount
from headrace.origin.memory import MemoryOrigin
from headrace.policy.tenant_division import TenantDivision
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from tests.unit.dataplane.read_fixture import MIB, ReadPathFixture

pytestmark = pytest.mark.timeout(60)


class RecordingOrigin(MemoryOrigin):
    """Records the keys that it is asked for, in order."""

    def __init__(self) -> None:
        super().__init__("recording")
        self.keys: list[str] = []

    async def read_range(self, key: str, start: int, end: int, **rest: Any) -> Arrived:
        self.keys.append(key)
        await pass_time(0.01)
        return await super().read_range(key, start, end, **rest)


class FilePriorities:
    """Gives each file a priority of its own."""

    def __init__(self) -> None:
        self.priorities: dict[FileId, Priority] = {}

    def group_of(self, id: FileId) -> EvictionGroup:
        return EvictionGroup(self.priorities.get(id, Priority.NORMAL))


async def test_a_job_of_a_low_priority_is_not_raised_by_a_rule(tmp_path: Path) -> None:
    """The lower of both counts, and the permits go to the higher one first."""
    origin, groups = RecordingOrigin(), FilePriorities()
    division = TenantDivision(groups.group_of, 64 * MIB)
    async with ReadPathFixture(tmp_path, origin=origin, division=division).running() as world:
        files = FileWork(world.store, world.reads, world.disk)
        for name in ("a", "b", "c"):
            origin.hold(name, name.encode() * 100)
        rows = [(await world.entry(name), priority) for name, priority in zip("abc", (2, 1, 1), strict=True)]
        groups.priorities = {rows[0][0].id: Priority.HIGH, rows[1][0].id: Priority.LOW}
        files._slots._free = 0
        tasks = [
            asyncio.ensure_future(files.load(entry, job=LoadJob("load", Priority(priority))))
            for entry, priority in rows
        ]
        await pass_time(0.01)
        files._slots._release()
        await asyncio.gather(*tasks)
        assert origin.keys == ["c", "a", "b"]


class SlowBudget(NoAccounts):
    """Lets no background work read from the origin until the test ends."""

    def __init__(self) -> None:
        self.waiting = 0

    async def admit(self, mount: Mount, size_bytes: int, job: str) -> None:
        if job == "slowed":
            self.waiting += 1
            await asyncio.Event().wait()


async def test_loads_that_wait_for_a_budget_hold_up_no_others(tmp_path: Path) -> None:
    origin, budget = RecordingOrigin(), SlowBudget()
    async with ReadPathFixture(tmp_path, origin=origin).running() as world:
        world.sources.accounts = budget
        files = FileWork(world.store, world.reads, world.disk)
        names = [f"slow-{number}" for number in range(AT_ONCE)]
        for name in (*names, "free"):
            origin.hold(name, name.encode())
        tasks = [
            asyncio.ensure_future(files.load(await world.entry(name), job=LoadJob("slowed")))
            for name in names
        ]
        await until(lambda: budget.waiting == AT_ONCE)
        async with asyncio.timeout(5):
            assert await files.load(await world.entry("free"), job=LoadJob("load")) == 4
        assert origin.keys == ["free"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
