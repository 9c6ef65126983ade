"""Ranks on several nodes: each node fetches what its own ranks read next, and each byte leaves the origin once."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

from headrace.plan.planned_files import PlannedFiles
from headrace.prefetch.cached_numbers import CachedNumbers
from headrace.prefetch.fetcher import PlannedFetcher
from headrace.prefetch.plan_table import PlanTable
from headrace.testing.virtual_loop import pass_time
from tests.unit.dataplane.nodes_fixture import NodesFixture, OneNode
from tests.unit.prefetch.job_fixture import Job

FILES, SIZE_BYTES = 120, 1000


class PlannedMember:
    """A node of the cluster, with the plans of its rank."""

    def __init__(self, node: OneNode, paths: list[bytes]) -> None:
        self.node, self.paths = node, paths
        planned = PlannedFiles()
        cached = CachedNumbers(planned, node.store.index, node.reads.has)
        self.plans = PlanTable(planned, node.namespace, cached)
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
