"""The cached part of a data set larger than the cache stays, while a job reads it in epochs."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.prefetch.kept_epochs import KeptEpochs
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.prefetch.job_fixture import PlannedNode

pytestmark = pytest.mark.timeout(120)

FILES = 1250


@pytest.fixture
def memory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o700)
        yield folder


def node_with_memory(folder: Path, memory: str, *, keeps: bool) -> tuple[PlannedNode, KeptEpochs]:
    node = PlannedNode(folder, FILES, capacity_bytes=2 * MIB, spill_folder=memory)
    kept = KeptEpochs(node.predictions, partial(node.reads.store.space.has_free, 0, share=0.9))
    if keeps:
        node.reads.store.space.evicted.add(kept.note_evicted)
        node.reads.reads.objections.append(kept.keeps_out)
    return node, kept


async def hits_of_epochs(node: PlannedNode, orders: list[list[int]]) -> list[int]:
    """Return the hits of each epoch."""
    hits = []
    for order in orders:
        misses = 0
        for start in range(0, len(order), 50):
            misses += await node.open(order[start : start + 50])
            await node.settle(0.1)
        hits.append(len(order) - misses)
    return hits


def shuffled(epochs: int) -> list[list[int]]:
    orders = []
    for epoch in range(epochs):
        order = list(range(FILES))
        random.Random(epoch).shuffle(order)
        orders.append(order)
    return orders


async def test_an_epoch_hits_all_that_is_cached(tmp_path: Path, memory: str) -> None:
    node, kept = node_with_memory(tmp_path / "kept", memory, keeps=True)
    async with node.running():
        hits = await hits_of_epochs(node, shuffled(3))
        cached_files = len(node.cached())
    assert 0.1 * FILES < cached_files < 0.6 * FILES
    assert min(hits[1:]) >= 0.8 * cached_files, "from the second epoch on"
    assert kept.kept_out_files > 0


async def test_without_it_an_epoch_hits_much_less(tmp_path: Path, memory: str) -> None:
    node, kept = node_with_memory(tmp_path / "plain", memory, keeps=False)
    async with node.running():
        hits = await hits_of_epochs(node, shuffled(2))
        cached_files = len(node.cached())
    assert hits[1] <= 0.5 * cached_files
    assert kept.kept_out_files == 0


async def test_other_reads_take_the_space(tmp_path: Path, memory: str) -> None:
    """A second job with files of its own must not find the cache closed."""
    node, _ = node_with_memory(tmp_path / "other", memory, keeps=True)
    half = FILES // 2
    first = [[number for number in order if number < half] for order in shuffled(4)]
    async with node.running():
        await hits_of_epochs(node, first)
        small = list(range(FILES - 200, FILES))
        random.Random(9).shuffle(small)
        misses = [await node.open(small, process=2) for _ in range(4)]
    assert misses[-1] <= 20
