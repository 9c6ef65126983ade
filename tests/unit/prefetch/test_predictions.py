"""Jobs without a plan: what they will open is cached before, at a bounded cost. Time is virtual."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.base.model import FileId
from headrace.plan.file_numbers import FileNumbers
from headrace.plan.prediction_budget import PredictionBudget
from headrace.prefetch.prediction_table import PredictedDataSet
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.prefetch.job_fixture import Job, PlannedNode

FILES = 300


@pytest.fixture
def node(tmp_path: Path) -> PlannedNode:
    return PlannedNode(tmp_path, FILES)


def shuffled(seed: int, count: int = FILES) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def by_path(count: int = FILES) -> list[int]:
    return sorted(range(count), key=str)


def free(node: PlannedNode) -> None:
    ids = [id for number in range(len(node.paths)) if (id := node.id_of(number)) is not None]
    node.reads.reads.forget(ids)
    for id in ids:
        node.reads.store.free(id)


async def test_a_shuffled_epoch_is_fetched_while_it_is_read(node: PlannedNode) -> None:
    """After the first reads of a cold epoch, all other files are cached, though no one has read them."""
    async with node.running():
        order = shuffled(1)
        assert await node.open(order[:80]) > 60
        await node.settle()
        assert node.cached() == set(range(FILES))
        assert await node.open(order[80:]) == 0
        (data_set,) = node.predictions.data_sets
        assert (data_set.directory, data_set.predictor.model_name) == (b"/d", "shuffled")
        assert data_set.predictor.wrong == 0
        assert node.predicted.fetched_files == data_set.predictor.right


async def test_a_walk_is_fetched_ahead(node: PlannedNode) -> None:
    async with node.running():
        order = by_path()
        await node.open(order[:40])
        await node.settle()
        ahead = node.cached() - set(order[:40])
        assert ahead == set(order[40 : 40 + len(ahead)])
        assert len(ahead) > 20
        for start in range(40, FILES, 20):
            await node.open(order[start : start + 20])
            await node.settle(1)
        (data_set,) = node.predictions.data_sets
        assert data_set.predictor.wrong == 0
        assert data_set.predictor.right > FILES // 2


async def test_an_order_that_repeats_is_replayed(node: PlannedNode) -> None:
    async with node.running():
        order = shuffled(1)
        await node.open(order)
        free(node)
        await node.open(order[:60])
        await node.settle()
        (data_set,) = node.predictions.data_sets
        assert data_set.predictor.model_name == "repeated"
        assert set(order[60:120]) <= node.cached()


async def test_random_opens_are_not_followed(node: PlannedNode) -> None:
    """With repeats as in independent draws, the model switches off, and waste is bounded."""
    async with node.running():
        draws = random.Random(5)
        for _ in range(40):
            await node.open([draws.randrange(FILES) for _ in range(25)])
            free(node)
        (data_set,) = node.predictions.data_sets
        assert data_set.predictor.model is None
        assert node.predicted.fetched_files <= 50


async def test_wrong_predictions_cost_bounded_bytes(node: PlannedNode) -> None:
    """A process begins walks, and leaves each one when it is followed."""
    node.predictions.budget = PredictionBudget(0.0, base_bytes=2 * MIB)
    async with node.running():
        order = by_path()
        for start in range(0, FILES - 40, 20):
            await node.open(order[start : start + 20])
            await node.settle(1)
            await node.open([order[-1 - start // 20]])
            free(node)
        budget = node.predictions.budget
        assert budget.wrong_bytes + budget.outstanding_bytes <= 2 * MIB + budget.right_bytes


async def test_nothing_is_evicted_for_a_prediction(tmp_path: Path) -> None:
    """The cache takes half of the files. Predictions stop where space ends, below the line where eviction ends."""
    node = PlannedNode(tmp_path, 3000, capacity_bytes=8 * MIB)
    async with node.running():
        order = shuffled(3, 3000)
        await node.open(order[:200])
        await node.settle()
        assert node.predicted.fetched_files > 200
        assert node.reads.store.space.evicted_files == 0
        assert 0.6 * 8 * MIB < node.reads.store.disks[0].used_bytes < 0.87 * 8 * MIB
        fetched = node.predicted.fetched_files
        await node.open(order[200:240])
        await node.settle()
        assert node.predicted.fetched_files <= fetched + 40


async def test_a_reader_with_a_plan_is_not_predicted(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        await node.open(shuffled(2))
        assert node.predictions.data_sets == []


async def test_files_that_are_all_cached_are_not_watched(node: PlannedNode) -> None:
    async with node.running():
        await node.open(shuffled(0))
        for epoch in range(1, 4):
            assert await node.open(shuffled(epoch)) == 0
        assert node.predictions.data_sets == []
        assert node.predictions.counts() == (node.predicted.fetched_files, node.predicted.fetched_files, 0)


async def test_two_jobs_of_one_session_are_both_fetched_ahead(node: PlannedNode) -> None:
    async with node.running():
        walk, half = by_path(), FILES // 2
        for start in range(0, 100, 2):
            await node.open(walk[start : start + 2], stream=11)
            await node.open(walk[half + start : half + start + 2], stream=12)
        await node.settle()
        (data_set,) = node.predictions.data_sets
        predictors = data_set.streams.predicting
        assert [predictor.model_name for predictor in predictors] == ["sequential"] * 2
        assert {walk[100], walk[110], walk[half + 100], walk[half + 110]} <= node.cached()
        assert node.predictions.counts()[2] <= 8


async def test_jobs_of_one_session_have_the_data_sets_that_each_of_them_reads(tmp_path: Path) -> None:
    """Together, their first misses would have the directory above both."""
    node = PlannedNode(tmp_path, FILES)
    for number in range(FILES):
        node.paths[number] = b"/%s/%d" % (b"ab"[number % 2 : number % 2 + 1], number)
        node.reads.origin.hold(node.paths[number][1:].decode(), number.to_bytes(4, "little") * 250)
    async with node.running():
        for number in range(40):
            await node.open([number], stream=1 + number % 2)
        assert {data_set.directory for data_set in node.predictions.data_sets} == {b"/a", b"/b"}


async def test_two_processes_are_two_jobs(node: PlannedNode) -> None:
    async with node.running():
        walk, order = by_path(), shuffled(1)
        for start in range(0, 60, 2):
            await node.open(walk[start : start + 2], process=1)
            await node.open(order[start : start + 2], process=2)
        assert len(node.predictions.data_sets) <= 2
        walks = [data_set for data_set in node.predictions.data_sets if data_set.predictor.sequential.is_on]
        assert len(walks) == 1


async def test_a_walk_through_directories_is_one_data_set(tmp_path: Path) -> None:
    """With the third of its directories, their parent is the data set."""
    node = PlannedNode(tmp_path, FILES)
    for number in range(FILES):
        node.reads.origin.delete(f"d/{number}")
        node.paths[number] = b"/d/%d/%03d" % (number // 50, number)
        node.reads.origin.hold(f"d/{number // 50}/{number:03}", number.to_bytes(4, "little") * 250)
    async with node.running():
        for number in range(0, FILES, 50):
            directory = await node.reads.namespace.resolver.resolve(b"/d/%d" % (number // 50))
            await node.reads.namespace.listings.list(directory.id)
        await node.open(range(140))
        assert [data_set.directory for data_set in node.predictions.data_sets] == [b"/d"]
        await node.settle()
        await node.open(range(140, FILES))
        (data_set,) = node.predictions.data_sets
        assert data_set.predictor.right > 100
        assert data_set.predictor.wrong == 0


async def test_opens_of_one_report_are_all_noted(node: PlannedNode) -> None:
    """A fast job opens all files before its first report arrives."""
    async with node.running():
        order = shuffled(1)
        entries = [await node.reads.namespace.resolver.resolve(node.paths[number]) for number in order[:80]]
        ids = [entry.id for entry in entries]
        node.predictions.note_misses(ids)
        for id in ids:
            await node.reads.reads.open(id)
        await node.predictions.note_opens(ids, 1)
        await node.settle()
        assert node.cached() == set(range(FILES))


def test_a_file_that_is_fetched_again_before_its_open_is_outstanding_once() -> None:
    """It was evicted, and the predictor of another job has chosen it, too."""
    budget, numbers = PredictionBudget(0.0, 10_000), FileNumbers()
    for id in range(1, FILES + 1):
        numbers.add(FileId(id))
    data_set = PredictedDataSet(b"/d", numbers, budget, build_s=0.0)
    for _ in range(2):
        data_set.begin(7, 1000)
        data_set.complete(1000)
    assert (budget.outstanding_bytes, budget.wrong_bytes) == (1000, 1000)
    data_set.open(8, 1, 0.0, is_miss=False)
    assert (budget.outstanding_bytes, budget.right_bytes) == (0, 1000)
    assert budget.allowance_bytes(0.0) == 10_000
