"""Samples that are parts of large files: only the extents that come next are fetched. Time is virtual."""

from __future__ import annotations

import itertools
import random
from array import array
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.model import FileId
from headrace.plan import file_numbers
from headrace.plan.file_numbers import DIVISION_EXTENTS, EXTENTS_MAX, NO_FILE, FileNumbers
from headrace.testing.waiting import until
from headrace.wire.messages import PlanExtents, PlanSamples
from tests.random_bytes import random_bytes
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.prefetch.job_fixture import Job, PlannedNode

SAMPLE_BYTES = MIB // 4
FILE_BYTES = 8 * MIB
FILES = 4
SAMPLES = FILES * FILE_BYTES // SAMPLE_BYTES
PER_EXTENT = MIB // SAMPLE_BYTES


class LargeFiles(PlannedNode):
    """A node with files of 8 MiB, whose samples have 256 KiB each. Extents have 1 MiB."""

    def __init__(self, folder: Path, *, capacity_bytes: int = 64 * MIB) -> None:
        super().__init__(folder, SAMPLES, capacity_bytes=capacity_bytes)
        self.paths = [b"/d/large%d" % number for number in range(FILES)]
        self.bodies = [random_bytes(number, FILE_BYTES) for number in range(FILES)]
        for number, body in enumerate(self.bodies):
            self.reads.origin.hold(f"d/large{number}", body)

    def extents(self, size_bytes: int = MIB) -> PlanExtents:
        offsets = array("Q", range(0, FILE_BYTES + 1, size_bytes))
        return PlanExtents(
            b"digest",
            1,
            b"\0".join(self.paths),
            array("I", [FILE_BYTES // size_bytes] * FILES).tobytes(),
            offsets.tobytes() * FILES,
        )

    def present(self) -> set[tuple[int, int]]:
        """Return the (file, MiB) that are in the cache, and check their bytes."""
        present = set()
        for number in range(FILES):
            id = self.id_of(number)
            for block in range(FILE_BYTES // MIB if id is not None else 0):
                assert id is not None
                start = block * MIB
                if self.reads.reads.has(id, start, start + MIB):
                    part = self.bodies[number][start : start + MIB]
                    cached = self.reads.store.index.cached(id)
                    name = "data_path" if cached is not None and cached.complete else "part_path"
                    path = Path(getattr(self.reads.store.volumes[0], name)(id))
                    assert path.read_bytes()[start : start + MIB] == part
                    present.add((number, block))
        return present


class ExtentJob(Job):
    """A loader over samples of 256 KiB."""

    def __init__(self, node: LargeFiles, stream: str = "s", *, batch_size: int = 4) -> None:
        super().__init__(node, stream, batch_size=batch_size, samples=SAMPLES)
        self._node = node

    async def begin_extents(self, order: list[int]) -> None:
        if not self._node.plans.start(self.start):
            await self._node.plans.divide(self._node.extents())
            numbers = array("I", [1 + sample // PER_EXTENT for sample in range(SAMPLES)])
            await self._node.plans.place(PlanSamples(b"digest", 0, 1, numbers.tobytes()))
        await self.order(order, 0)


def place_of(sample: int) -> tuple[int, int]:
    return sample * SAMPLE_BYTES // FILE_BYTES, sample * SAMPLE_BYTES % FILE_BYTES // MIB


@pytest.fixture
def node(tmp_path: Path) -> LargeFiles:
    return LargeFiles(tmp_path)


async def test_only_the_extents_of_the_order_are_fetched(node: LargeFiles) -> None:
    order = random.Random(1).sample(range(SAMPLES), 12)
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents(order)
        await node.settle()
        assert node.present() == {place_of(sample) for sample in order}
        assert node.fetcher.fetched_bytes == len(node.present()) * MIB
        assert job.reader.state == "planned"
        job.progress(len(order))
        assert (job.reader.hits, job.reader.misses) == (len(order), 0)


async def test_a_whole_epoch_completes_the_files(node: LargeFiles) -> None:
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents(random.Random(2).sample(range(SAMPLES), SAMPLES))
        await node.settle()
        assert node.present() == set(itertools.product(range(FILES), range(FILE_BYTES // MIB)))
        assert node.fetcher.fetched_bytes == FILES * FILE_BYTES


async def test_a_second_rank_shares_extents_and_fetches(node: LargeFiles) -> None:
    async with node.running():
        first, second = ExtentJob(node, "a"), ExtentJob(node, "b")
        await first.begin_extents([0, 40])
        await second.begin_extents([41, 100])
        assert second.reader.sample_map is first.reader.sample_map
        await node.settle()
        assert node.present() == {place_of(sample) for sample in (0, 40, 100)}
        assert node.fetcher.fetched_bytes == 3 * MIB


async def test_samples_across_extents_are_fetched_with_all_of_them(node: LargeFiles) -> None:
    async with node.running():
        job = Job(node, samples=2)
        node.plans.start(job.start)
        await node.plans.divide(node.extents())
        await node.plans.place(PlanSamples(b"digest", 0, 2, array("I", [1, 9, 3, 0]).tobytes()))
        await job.order([1, 0], 0)
        await node.settle()
        assert node.present() == {(0, 0), (1, 0), (0, 2)}
        job.progress(1)
        assert job.reader.stream is not None
        assert job.reader.stream.position == 2


async def test_extents_that_were_evicted_before_their_use_are_fetched_again(node: LargeFiles) -> None:
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents([0, 40, 80])
        await node.settle()
        id = node.id_of(1)
        assert id is not None
        node.reads.store.free(id)
        node.reads.reads.forget([id])
        node.plans.note_evicted([id])
        assert job.reader.positions.cursor == 1
        assert (1, 2) not in node.present()
        await node.settle(10)
        assert node.present() == {place_of(sample) for sample in (0, 40, 80)}


async def test_opens_of_other_files_do_not_end_a_plan_of_extents(node: LargeFiles) -> None:
    """The workers open index files beside, and each large file once for many samples."""
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents([0, 40, 80])
        await job.learn({0: [node.paths[2]], 5: [node.paths[0]]})
        assert job.reader.state == "planned"


async def test_extents_of_files_that_are_gone_or_shorter_are_passed(node: LargeFiles) -> None:
    node.paths[0] = b"/d/none"
    node.reads.origin.hold("d/large1", node.bodies[1][: MIB + 1])
    node.bodies[1] = node.bodies[1][: MIB + 1]
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents(list(range(SAMPLES)))
        await node.settle()
        id = node.id_of(1)
        assert id is not None
        assert node.reads.content(id) == node.bodies[1]
        assert {file for file, _ in node.present()} == {1, 2, 3}


async def test_wrong_extents_are_refused(node: LargeFiles) -> None:
    async with node.running():
        job = ExtentJob(node)
        extents = node.extents()
        with pytest.raises(UsageError, match="no stream"):
            await node.plans.divide(extents)
        node.plans.start(job.start)
        with pytest.raises(UsageError, match="come next"):
            await node.plans.divide(
                PlanExtents(b"digest", 9, b"/d/0", b"\1\0\0\0", bytes(8) + b"\1" * 7 + b"\0")
            )
        await node.plans.divide(extents)
        for first, numbers in ((0, [99]), (SAMPLES, [1]), (7, [1])):
            with pytest.raises(UsageError):
                await node.plans.place(PlanSamples(b"digest", first, 1, array("I", numbers).tobytes()))


@pytest.mark.parametrize(
    ("counts", "bounds"),
    [([1], [0]), ([0], [0]), ([2], [0, 5]), ([1], [5, 5]), ([1], [0, 1 << 63]), ([1, 1], [0, 5])],
)
def test_bounds_that_are_no_extents_are_not_decoded(counts: list[int], bounds: list[int]) -> None:
    with pytest.raises(ValueError, match=r"extents|bounds"):
        PlanExtents(b"d", 1, b"/d/0", array("I", counts).tobytes(), array("Q", bounds).tobytes())


@pytest.mark.parametrize("counts", [[1], [1, 0], [1, 1, 1], [1, 0xFFFFFFFF]])
def test_counts_that_do_not_fit_their_rows_are_not_decoded(counts: list[int]) -> None:
    rows = array("I", [1, 2]).tobytes()
    with pytest.raises(ValueError, match=r"count|plan"):
        PlanSamples(b"d", 0, 1, rows, array("I", counts).tobytes())
    with pytest.raises(ValueError, match="count"):
        PlanSamples(b"d", 0, 1, rows, b"123")


async def test_rows_of_several_samples_are_fetched_as_those_of_each(node: LargeFiles) -> None:
    order = random.Random(3).sample(range(SAMPLES), 12)
    async with node.running():
        job = ExtentJob(node)
        node.plans.start(job.start)
        await node.plans.divide(node.extents())
        rows = array("I", range(1, SAMPLES // PER_EXTENT + 1))
        counts = array("I", [PER_EXTENT] * len(rows))
        samples = PlanSamples(b"digest", 0, 1, rows.tobytes(), counts.tobytes())
        await node.plans.place(samples)
        await node.plans.place(samples)  # of another process of the job
        await job.order(order, 0)
        await node.settle()
        assert node.present() == {place_of(sample) for sample in order}


async def test_extents_after_the_samples_and_orders_beyond_them_are_refused(node: LargeFiles) -> None:
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents([0])
        with pytest.raises(UsageError, match="come before the samples"):
            last = len(job.reader.sample_map.extents) + 1
            await node.plans.divide(
                PlanExtents(b"digest", last, b"/d/0", b"\1\0\0\0", array("Q", [0, 1]).tobytes())
            )
        with pytest.raises(UsageError, match="only"):
            await job.order([0, SAMPLES], 1)


async def test_a_full_cache_takes_extents_that_are_needed_before_its_files(tmp_path: Path) -> None:
    """A table of next uses has no extents: the reader's position says when an extent is needed."""
    node = LargeFiles(tmp_path, capacity_bytes=20 * MIB)
    async with node.running():
        job = ExtentJob(node)
        await job.begin_extents(list(range(SAMPLES)))
        await node.settle()
        job.progress(SAMPLES // 2)

        async def has_next() -> bool:
            await node.settle(10)
            return (FILES // 2, 0) in node.present()

        await until(has_next)  # each eviction of what is to be read makes the fetcher pause
        assert node.fetcher.failed_files == 0


async def test_extents_count_as_samples(tmp_path: Path) -> None:
    node = LargeFiles(tmp_path)
    node.plans._samples_max = 2 * SAMPLES
    async with node.running():
        node.plans.start(ExtentJob(node).start)
        with pytest.raises(HeadraceError, match="samples at most"):
            await node.plans.divide(node.extents(MIB // 8))


def test_a_file_that_is_divided_in_the_same_way_keeps_its_numbers() -> None:
    numbers = FileNumbers(files_max=20)
    assert numbers.add(FileId(5)) == 1
    first = numbers.divide(FileId(7), array("Q", [0, 10, 30]))
    assert list(first) == [2, 3]
    assert numbers.divide(FileId(7), array("Q", [0, 10, 30])) == first
    other = numbers.divide(FileId(7), array("Q", [10, 20]))
    assert list(other) == [4]
    assert [numbers.extent_of(number) for number in (1, 2, 3, 4, 5)] == [
        None,
        (0, 10),
        (10, 30),
        (10, 20),
        None,
    ]
    assert [numbers.id_of(number) for number in (1, 2, 3, 4)] == [5, 7, 7, 7]
    assert numbers.number_of(FileId(7)) == NO_FILE
    assert numbers.add(FileId(8)) == 5
    assert not numbers.divide(FileId(9), array("Q", range(30)))
    assert (numbers.is_divided(FileId(7)), numbers.is_divided(FileId(9))) == (True, False)
    assert EXTENTS_MAX > 20


def test_a_file_may_be_divided_in_many_ways() -> None:
    """The time of a division does not grow with those of the file before: a message has 4,096 of them."""
    numbers = FileNumbers()
    compared = [CountedBounds("Q", [start, start + 1]) for start in range(100)]
    first = [numbers.divide(FileId(7), bounds) for bounds in compared]
    assert [list(row) for row in first] == [[number] for number in range(1, 101)]
    assert [numbers.divide(FileId(7), bounds) for bounds in compared] == first
    assert CountedBounds.comparisons == 0


def test_divisions_have_a_limit_however_few_extents_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_numbers, "EXTENTS_MAX", 3 * DIVISION_EXTENTS)
    numbers = FileNumbers()
    rows = [numbers.divide(FileId(number), array("Q", [0, 1])) for number in range(1, 5)]
    assert [len(row) for row in rows] == [1, 1, 0, 0]
    other = FileNumbers()
    assert len(other.divide(FileId(1), array("Q", range(2 * DIVISION_EXTENTS + 1)))) == 2 * DIVISION_EXTENTS
    assert not other.divide(FileId(2), array("Q", [0, 1]))


class CountedBounds(array):  # type: ignore[type-arg]
    """Counts how often bounds are compared with others."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedBounds.comparisons += 1
        return super().__eq__(other)
