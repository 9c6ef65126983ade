"""Ranks on several nodes: each node fetches what its own ranks read next, and each byte leaves the origin once."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headrace.dataplane.intent import FOREGROUND
from headrace.prefetch.cached_numbers import CachedNumbers
from headrace.prefetch.fetcher import PlannedFetcher
from headrace.prefetch.plan_table import PlanTable
from headrace.store.space import CacheSpace
from headrace.testing.virtual_loop import pass_time
from tests.unit.dataplane.nodes_fixture import NodesFixture, OneNode
from tests.unit.prefetch.job_fixture import Job

FILES, SIZE_BYTES = 120, 1000


class PlannedMember:
    """A node of the cluster, with the plans of its rank."""

    def __init__(self, node: OneNode, paths: list[bytes]) -> None:
        self.node, self.paths = node, paths
        cached = CachedNumbers(node.planned, node.store.index, node.reads.has)
        self.plans = PlanTable(node.planned, node.namespace, cached)
        node.store.space.evicted.add(self.plans.note_evicted)
        node.store.space.evicted.add(node.reads.forget)
        self.fetcher = PlannedFetcher(
            self.plans, node.reads, node.store, node.namespace.tree, watermark_low=0.9
        )

    def has(self, path: bytes, body: bytes) -> bool:
        """Return whether a file is cached whole on this node, with the bytes of the origin."""
        entry = self.node.namespace.tree.entry_at(path)
        cached = None if entry is None else self.node.store.index.cached(entry.id)
        if entry is None or cached is None or not cached.complete:
            return False
        assert self.node.content(entry.id)[: len(body)] == body
        return True


async def test_each_sample_is_on_the_node_of_its_next_reader(tmp_path: Path) -> None:
    world = NodesFixture(tmp_path)
    bodies = {b"/d/%d" % number: random.Random(number).randbytes(SIZE_BYTES) for number in range(FILES)}
    for path, body in bodies.items():
        world.origin.hold(path[1:].decode(), body)
    async with AsyncExitStack() as stack:
        members = [PlannedMember(node, list(bodies)) for node in world.nodes.values()]
        for member in members:
            member.fetcher.start()
            stack.push_async_callback(member.node.close)
            stack.push_async_callback(member.fetcher.stop)
        for epoch in range(3):
            order = list(range(FILES))
            random.Random(epoch).shuffle(order)
            shares = [order[rank :: len(members)] for rank in range(len(members))]
            for member, share in zip(members, shares, strict=True):
                job = Job(member, f"rank of {member.node.id}")  # type: ignore[arg-type]
                await (job.order(share, epoch) if epoch else job.begin(share))
                job.progress(0, epoch)
            await pass_time(5)
            for member, share in zip(members, shares, strict=True):
                paths = [member.paths[number] for number in share]
                assert all(member.has(path, bodies[path]) for path in paths)
                Job(member, f"rank of {member.node.id}").progress(len(share), epoch)  # type: ignore[arg-type]
            assert world.origin.bytes_read == FILES * SIZE_BYTES


@pytest.mark.parametrize("borrowed_share", [0.0, 1e-6])
async def test_files_that_would_be_evicted_at_once_are_not_fetched(
    tmp_path: Path, borrowed_share: float
) -> None:
    """They were fetched and evicted again and again, every five seconds. Those that the node owns are fetched."""
    world = NodesFixture(tmp_path, borrowed_share=borrowed_share)
    bodies = {b"/d/%d" % number: random.Random(number).randbytes(SIZE_BYTES) for number in range(FILES)}
    for path, body in bodies.items():
        world.origin.hold(path[1:].decode(), body)
    async with AsyncExitStack() as stack:
        for node in world.nodes.values():
            stack.push_async_callback(node.close)
        member = PlannedMember(next(iter(world.nodes.values())), list(bodies))
        member.fetcher.start()
        stack.push_async_callback(member.fetcher.stop)
        await Job(member, "rank").begin(list(range(FILES)))  # type: ignore[arg-type]
        Job(member, "rank").progress(0, 0)  # type: ignore[arg-type]
        for _ in range(80):
            await pass_time(0.25)
            while member.node.store.space.evict_if_needed():
                pass
        own = [path for path in bodies if world.view.owners(path)[0].id == member.node.id]
        assert own and len(own) < FILES
        assert [path for path, body in bodies.items() if member.has(path, body)] == own
        assert member.fetcher.fetched_files == len(own)


class SmallCaches:
    """Eight nodes with caches of a third of a data set, and a rank on each. The ranks read it in shuffled epochs, with
    a plan or without one; the order of the next epoch is known while one runs, as that of a DistributedSampler."""

    FILES, FILE_BYTES, BATCH, EPOCHS = 256, 16384, 4, 3

    def __init__(self, folder: Path, *, is_planned: bool) -> None:
        self.world = NodesFixture(
            *(folder,),
            nodes="abcdefgh",
            capacity_bytes=self.FILES * self.FILE_BYTES // 3,
            borrowed_share=0.5,
        )
        self._is_planned = is_planned
        self._bodies = {
            b"/d/%d" % number: random.Random(number).randbytes(self.FILE_BYTES)
            for number in range(self.FILES)
        }
        for path, body in self._bodies.items():
            self.world.origin.hold(path[1:].decode(), body)
        self.members = [PlannedMember(node, list(self._bodies)) for node in self.world.nodes.values()]
        self._jobs = [
            Job(member, f"rank of {member.node.id}", batch_size=self.BATCH)  # type: ignore[arg-type]
            for member in self.members
        ]

    def shares(self, epoch: int) -> list[list[int]]:
        order = list(range(self.FILES))
        random.Random(epoch).shuffle(order)
        return [order[rank :: len(self.members)] for rank in range(len(self.members))]

    def moved_data_sets(self) -> float:
        """Return what all nodes have read from each other and from the origin, in data sets."""
        peers = sum(node.peers.bytes_read for node in self.world.nodes.values())
        return (peers + self.world.origin.bytes_read) / (self.FILES * self.FILE_BYTES)

    async def run(self) -> float:
        """Read all epochs. Return the share of the reads whose file was on the disk of its reader."""
        hits = 0
        if self._is_planned:
            for job, share in zip(self._jobs, self.shares(0), strict=True):
                await job.begin(share)
            await self._step()
        for epoch in range(self.EPOCHS):
            shares, later = self.shares(epoch), self.shares(epoch + 1)
            for first in range(0, self.FILES // len(self.members), self.BATCH):
                for member, job, share, later_share in zip(
                    self.members, self._jobs, shares, later, strict=True
                ):
                    if self._is_planned:
                        job.progress(first + self.BATCH, epoch)
                        if first == self.BATCH and epoch + 1 < self.EPOCHS:
                            await job.order(later_share, epoch + 1)
                    for number in share[first : first + self.BATCH]:
                        hits += await self._read(member, number)
                await self._step()
        return hits / (self.EPOCHS * self.FILES)

    async def _read(self, member: PlannedMember, number: int) -> bool:
        """Read a file, and compare its bytes. Return whether it was on the reader's disk."""
        path, node = member.paths[number], member.node
        is_hit = member.has(path, self._bodies[path])
        entry = await node.entry(path[1:].decode())
        if not is_hit:
            await node.reads.fill(entry.id, 0, self.FILE_BYTES, FOREGROUND)
            assert node.content(entry.id)[: self.FILE_BYTES] == self._bodies[path]
        node.store.touch([entry.id])
        return is_hit

    async def _step(self) -> None:
        """Let a second pass, with the upkeep of the caches."""
        for _ in range(4):
            for member in self.members:
                while member.node.store.space.evict_if_needed():
                    pass
            await pass_time(0.25)


@pytest.mark.timeout(300)
async def test_caches_smaller_than_the_data_cost_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were fetched for a reader stay until it has read them. Owners keep what others will request."""
    monkeypatch.setattr(CacheSpace, "_count_index", lambda _: None)  # it is as large as these files
    moved = {}
    for is_planned in (True, False):
        nodes = SmallCaches(tmp_path / str(is_planned), is_planned=is_planned)
        async with AsyncExitStack() as stack:
            for member in nodes.members:
                stack.push_async_callback(member.node.close)
                member.fetcher.start()
                stack.push_async_callback(member.fetcher.stop)
            own = await nodes.run()
            moved[is_planned] = nodes.moved_data_sets()
            if is_planned:
                assert own > 0.95
                assert nodes.world.origin.bytes_read == nodes.FILES * nodes.FILE_BYTES
    assert moved[True] <= 1.02 * moved[False]
