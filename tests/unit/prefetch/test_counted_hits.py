"""A sample counts as a hit if it was cached when its loader took it. Time is virtual."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.prefetch.ready_positions import ABSENT_MAX, ReadyPositions
from tests.unit.prefetch.job_fixture import Job, PlannedNode

FILES = 200


@pytest.fixture
def node(tmp_path: Path) -> PlannedNode:
    return PlannedNode(tmp_path, FILES)


def shuffled(seed: int) -> list[int]:
    order = list(range(FILES))
    random.Random(seed).shuffle(order)
    return order


async def test_batches_that_wait_for_the_workers_are_hits_if_they_are_cached(node: PlannedNode) -> None:
    """An unseeded shuffle is known only as its epoch begins. Its loader takes the first batches at once."""
    async with node.running():
        job = Job(node, batch_size=16)
        await job.begin(shuffled(1))
        await node.settle()
        job.progress(FILES)
        await job.order(shuffled(2), epoch=1)
        job.progress(128, epoch=1)
        assert (job.reader.hits, job.reader.misses) == (128, 0)


async def test_a_sample_that_is_fetched_late_is_the_only_miss(node: PlannedNode) -> None:
    """Those after it, which are cached, are hits."""
    async with node.running():
        job = Job(node, batch_size=16)
        await job.begin(shuffled(1))
        await node.settle()
        order = shuffled(2)
        free(node, order[5])
        job.progress(FILES)
        await job.order(order, epoch=1)
        job.progress(128, epoch=1)
        assert (job.reader.hits, job.reader.misses) == (127, 1)


async def test_a_file_that_is_read_before_it_is_fetched_is_a_miss(node: PlannedNode) -> None:
    """Though it is cached when its position is reported: a loader without workers reads at once what it takes."""
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        job.progress(4)
        job.reader.pause()
        await node.open(shuffled(1)[4:104])
        await node.settle(10)
        job.progress(104)
        assert (job.reader.hits, job.reader.misses) == (0, 104)


async def test_files_that_go_before_their_use_are_misses_alone(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node, batch_size=16)
        await job.begin(shuffled(1))
        await node.settle()
        for position in (20, 50, 90):
            free(node, shuffled(1)[position])
        job.progress(64)
        assert (job.reader.hits, job.reader.misses) == (62, 2)
        await node.settle(10)
        job.progress(128)
        assert (job.reader.hits, job.reader.misses) == (126, 2)


async def test_samples_that_were_read_before_the_node_knew_their_order_are_not_counted(
    node: PlannedNode,
) -> None:
    """A job whose node was replaced in mid-epoch has such samples."""
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        job.progress(150)
        assert (job.reader.hits, job.reader.misses) == (0, 64)


async def test_samples_of_several_files_are_counted_once(tmp_path: Path) -> None:
    node = PlannedNode(tmp_path, 40)
    async with node.running():
        job = Job(node, digest=b"", samples=20)
        await job.begin(range(20))
        await job.learn({index: [node.paths[index], node.paths[index + 20]] for index in range(20)})
        await job.order(range(20), epoch=1)
        job.progress(0, epoch=1)
        await node.settle()
        for number in (3, 5, 25):
            free(node, number)
        job.progress(20, epoch=1)
        assert (job.reader.hits, job.reader.misses) == (18, 2)


def test_absent_positions_take_little_memory() -> None:
    """Those beyond the limit count as not cached until the fetcher has passed them again."""
    positions = ReadyPositions()
    for _ in range(3 * ABSENT_MAX):
        positions.pass_one()
    for position in range(2 * ABSENT_MAX):
        positions.go_back(position)
    assert len(positions._absent) == ABSENT_MAX
    assert positions.missed_samples(0, 0, 3 * ABSENT_MAX, 1) == 3 * ABSENT_MAX
    for _ in range(3 * ABSENT_MAX):
        positions.pass_one()
    assert positions.missed_samples(0, 0, 3 * ABSENT_MAX, 1) == ABSENT_MAX


def free(node: PlannedNode, number: int) -> None:
    """Remove a file from the cache, as eviction does."""
    id = node.id_of(number)
    assert id is not None
    node.reads.store.free(id)
    node.reads.reads.forget([id])
    node.plans.note_evicted([id])
