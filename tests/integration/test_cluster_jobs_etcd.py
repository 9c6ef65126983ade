"""Jobs of several nodes over a real etcd, which is killed, away and robbed of its data in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

import pytest

from headrace.cluster.etcd import EtcdRecords
from headrace.testing.etcd import EtcdServer, etcd_server
from headrace.testing.waiting import until
from tests.unit.jobs.many_runners import JobClusterFixture

pytestmark = [pytest.mark.server("etcd"), pytest.mark.timeout(120)]
LEASE_S = 2


class EtcdJobCluster(JobClusterFixture):
    """Each node has a lease of its own."""

    def __init__(self, folder: Path, etcd: EtcdServer) -> None:
        self.etcd = etcd
        self.open: dict[str, EtcdRecords] = {}
        super().__init__(folder, records=lambda id: self.open[id])

    async def start(self, ids: str) -> None:
        for id in ids:
            self.open[id] = EtcdRecords([self.etcd.address], prefix="/jobs-test/", lease_s=LEASE_S)
            await self.open[id].start()
        await super().start(ids)

    async def kill(self, id: str) -> None:
        """Its lease goes with it."""
        await self.runners.pop(id).close()
        await self.open.pop(id).close()
        self.see("".join(node for node in self.view.nodes if node != id))

    async def half_way(self) -> tuple[list[str], str]:
        """A load of which the origin answered some; names and id."""
        names = self.put_many(60)
        self.origin.hold_after = 20
        id = await self.runners["a"].jobs.submit("load", "/d", {})
        await self.origin.held.wait()
        await self.until("c", id, lambda row: len(row.files_by_node) == 3 and not row.listing)
        return names, id

    async def in_thread(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, call)

    async def check_done(self, id: str, names: list[str]) -> None:
        row = await self.agree(id)
        assert (row.state, row.files_done, row.files_total, row.failed_files) == ("done", 60, 60, 0)
        for name in names:
            assert await self.runners[self.owners(name)[0]].has(name)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with super().running():
            try:
                yield self
            finally:
                for runner in self.runners.values():
                    await runner.jobs.stop()
                for records in self.open.values():
                    await records.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EtcdJobCluster]:
    with etcd_server() as etcd:
        async with EtcdJobCluster(tmp_path, etcd).running() as world:
            yield world


async def test_load_cancel_retry_and_pin(world: EtcdJobCluster) -> None:
    names, id = await world.half_way()
    await world.runners["b"].jobs.cancel(id)
    assert (await world.agree(id)).state == "cancelled"
    world.origin.release()
    await world.runners["c"].jobs.retry(id)
    await world.end_of("c", id)
    await world.check_done(id, names)
    await world.check_loaded(names)
    await world.agree(await world.runners["a"].jobs.submit("pin", "/d", {}))
    for name in names:
        assert [node for node in world.runners if await world.runners[node].is_pinned(name)] == world.owners(
            name
        )


async def test_the_node_that_took_the_job_dies(world: EtcdJobCluster) -> None:
    names, id = await world.half_way()
    world.origin.release()
    await world.kill("a")
    await world.check_done(id, names)


@pytest.mark.expected_warnings(
    "etcd is unavailable", "etcd is available again", "job records can't be written", "the lease was lost"
)
@pytest.mark.parametrize("robbed", [False, True], ids=["restarted", "data lost"])
async def test_etcd_is_killed_in_the_middle(world: EtcdJobCluster, robbed: bool) -> None:
    names, id = await world.half_way()
    await world.in_thread(world.etcd.kill)
    world.origin.release()
    await until(lambda: len(world.origin.reads) >= 60)  # the work goes on without etcd
    if robbed:
        world.etcd.lose_data()
    await world.in_thread(world.etcd.start)
    await world.check_done(id, names)
