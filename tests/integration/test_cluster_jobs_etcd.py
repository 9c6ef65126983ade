"""Jobs of several nodes over a real etcd, which is killed, away and robbed of its data in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.cluster.etcd import EtcdRecords
from headrace.testing.etcd import EtcdServer, etcd_server
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
        self.see("".join(one for one in self.view.nodes if one != id))

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

    def bring(self, test: Callable[[EtcdJobCluster], Awaitable[None]]) -> None:
        async def tested(_: JobClusterFixture) -> None:
            try:
                await test(self)
            finally:
                for runner in self.runners.values():
                    await runner.jobs.stop()
                for records in self.open.values():
                    await records.close()

        asyncio.run(self.run(tested))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EtcdJobCluster]:
    with etcd_server() as etcd:
        yield EtcdJobCluster(tmp_path, etcd)


def test_load_cancel_retry_and_pin(world: EtcdJobCluster) -> None:
    async def test(w: EtcdJobCluster) -> None:
        names, id = await w.half_way()
        await w.runners["b"].jobs.cancel(id)
        assert (await w.agree(id)).state == "cancelled"
        w.origin.release()
        await w.runners["c"].jobs.retry(id)
        await w.end_of("c", id)
        await w.check_done(id, names)
        await w.check_loaded(names)
        await w.agree(await w.runners["a"].jobs.submit("pin", "/d", {}))
        for name in names:
            assert [node for node in w.runners if await w.runners[node].is_pinned(name)] == w.owners(name)

    world.bring(test)


def test_the_node_that_took_the_job_dies(world: EtcdJobCluster) -> None:
    async def test(w: EtcdJobCluster) -> None:
        names, id = await w.half_way()
        w.origin.release()
        await w.kill("a")
        await w.check_done(id, names)

    world.bring(test)


@pytest.mark.parametrize("robbed", [False, True], ids=["restarted", "data lost"])
def test_etcd_is_killed_in_the_middle(world: EtcdJobCluster, robbed: bool) -> None:
    async def test(w: EtcdJobCluster) -> None:
        names, id = await w.half_way()
        await w.in_thread(w.etcd.kill)
        w.origin.release()
        while len(w.origin.reads) < 60:  # noqa: ASYNC110 - the work goes on without etcd
            await asyncio.sleep(0.01)
        if robbed:
            w.etcd.lose_data()
        await w.in_thread(w.etcd.start)
        await w.check_done(id, names)

    world.bring(test)
