"""Plans that lie, or come in pieces, at once, or without end: memory is bounded, and other plans are as before."""

from __future__ import annotations

import asyncio
import resource
import time
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError, UsageError
from headrace.base.model import Arrived, FileId, ObjectInfo, Version
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import ListPage
from headrace.plan.file_numbers import NO_FILE
from headrace.prefetch import fetcher as fetcher_module
from headrace.prefetch.plan_table import EPOCHS_AHEAD, STREAMS_MAX
from headrace.testing.virtual_loop import pass_time
from headrace.wire.messages import PLAN_NAMES_MAX, PlanLearn, PlanNames, PlanOrder, PlanProgress, PlanStart
from tests.unit.prefetch.job_fixture import Job, PlannedNode

FILES = 40


class FlakyOrigin(MemoryOrigin):
    """Serves nothing while it is away, and waits before it serves."""

    def __init__(self) -> None:
        super().__init__("flaky")
        self.is_away = False
        self.wait_s = 0.0
        self.reads = 0

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        self.reads += 1
        self._check()
        await pass_time(self.wait_s)
        return await super().read_range(key, start, end, version=version, deadline=deadline)

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        self._check()
        return await super().head(key, deadline=deadline)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        self._check()
        async for page in super().list_directory(key, deadline=deadline):
            yield page

    def _check(self) -> None:
        if self.is_away:
            raise OriginUnavailableError(self.url, why="it is away")


@pytest.fixture
def origin() -> FlakyOrigin:
    return FlakyOrigin()


@pytest.fixture
def node(tmp_path: Path, origin: FlakyOrigin) -> PlannedNode:
    return PlannedNode(tmp_path, FILES, samples_max=4000, origin=origin)


def start_of(stream: str, samples: int, digest: bytes = b"", key: str = "k") -> PlanStart:
    return PlanStart(stream, "train", 0, 1, key, digest, samples, 4)


async def test_samples_that_are_announced_take_no_memory_and_no_time(tmp_path: Path) -> None:
    node = PlannedNode(tmp_path, 1)
    async with node.running():
        before_kib, begin_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
        node.plans.start(start_of("a", 33_000_000))
        assert time.thread_time() - begin_s < 0.05
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 20_000
        with pytest.raises(UsageError):
            node.plans.start(start_of("b", 34_000_000, key="other"))


async def test_streams_are_bounded(node: PlannedNode) -> None:
    async with node.running():
        for number in range(STREAMS_MAX):
            node.plans.start(start_of(f"{number}", 1))
        with pytest.raises(UsageError):
            node.plans.start(start_of("more", 1))


async def test_orders_are_bounded_whatever_was_announced(node: PlannedNode) -> None:
    async with node.running():
        node.plans.start(start_of("a", 1))
        part = array("I", [0]) * 500
        refused = 0
        for epoch in range(20):
            for first in range(0, 2000, 500):
                try:
                    await node.plans.order(PlanOrder("a", epoch, first, part.tobytes(), first == 1500))
                except UsageError:
                    refused += 1
            (reader,) = node.plans.readers
            assert reader.held_samples <= 4000
        assert refused


async def test_parts_of_many_epochs_take_the_place_of_each_other(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(range(FILES))
        for epoch in range(1, 100):
            await node.plans.order(PlanOrder("s", epoch, 0, array("I", range(30)).tobytes(), False))
        assert job.reader.held_samples == FILES + 30
        await job.order(range(FILES), epoch=1)
        assert job.reader.held_samples == 2 * FILES


async def test_epochs_that_nobody_reads_do_not_pile_up(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        for epoch in range(50):
            await (job.order(range(FILES), epoch) if epoch else job.begin(range(FILES)))
            assert job.reader.held_samples <= (EPOCHS_AHEAD + 1) * FILES


async def test_a_third_process_waits_until_all_files_have_names(node: PlannedNode) -> None:
    """Two processes name the files at once. What was named stays, whatever is named later."""
    async with node.running():
        jobs = [Job(node, stream) for stream in "abc"]
        half = FILES // 2
        for job in jobs[:2]:
            assert not node.plans.start(job.start)
            await node.plans.name(PlanNames(b"digest", 0, b"\0".join(node.paths[:half])))
        assert not node.plans.start(jobs[2].start)
        await node.plans.name(PlanNames(b"digest", half, b"\0".join(node.paths[half:])))
        assert node.plans.start(jobs[2].start)
        await node.plans.name(PlanNames(b"digest", 0, b"\0".join(reversed(node.paths))))
        assert jobs[0].reader.state == "planned"
        with pytest.raises(UsageError):
            await node.plans.name(PlanNames(b"digest", FILES, b"/d/1"))


async def test_a_stream_that_ends_while_its_order_arrives_leaves_nothing(node: PlannedNode) -> None:
    """Else the store would ask for numbers of files that nobody has, and could not evict."""
    async with node.running():
        job = Job(node)
        await job.begin(range(FILES))
        arriving = asyncio.create_task(job.order(range(FILES), epoch=7))
        await asyncio.sleep(0)
        node.plans.end("s")
        await arriving
        assert node.planned.orders.streams == ()
        node.paths = node.paths[:5]
        other = Job(node, "t", digest=b"other")
        await other.begin([4, 3])
        await node.settle()
        ids = [id for number in range(5) if (id := node.id_of(number)) is not None]
        assert set(node.planned.choose(0, ids, lambda _: False)) <= set(ids)


async def test_a_map_that_grows_while_an_order_arrives_does_not_shift_it(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node, digest=b"")
        await job.begin([0])
        await job.learn({0: [node.paths[0]]})
        arriving = asyncio.create_task(job.order([0] * 100, epoch=1))
        await asyncio.sleep(0)
        await job.learn({0: [node.paths[1]]})
        await arriving
        job.progress(1, epoch=1)
        assert job.reader.epoch_samples == 100


async def test_a_position_beyond_the_epoch_spoils_no_later_one(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(range(20))
        job.progress(1 << 30)
        await job.order(range(20, FILES), epoch=1)
        job.progress(0, epoch=1)
        assert job.reader.stream is not None
        assert job.reader.stream.position == 20
        await node.settle()
        assert node.cached() >= set(range(20, FILES))
        job.progress(20, epoch=1)
        assert (job.reader.hits, job.reader.misses) == (20, 0)


async def test_a_sample_that_is_repeated_waits_once(node: PlannedNode, origin: FlakyOrigin) -> None:
    async with node.running():
        job = Job(node)
        origin.wait_s = 3.0
        await job.begin([1] * 1000)
        await pass_time(2)
        assert job.reader.positions.pending == {0}
        assert job.reader.positions.cursor == 1000
        await node.settle(4)
        assert not job.reader.positions.pending


async def test_an_origin_that_is_away_is_asked_slowly(tmp_path: Path, origin: FlakyOrigin) -> None:
    node = PlannedNode(tmp_path, 1000, origin=origin)
    async with node.running():
        job = Job(node)
        await job.begin(range(1000))
        origin.is_away = True
        await node.settle(20)
        assert node.fetcher.failed_files <= 64 * 5
        assert job.reader.positions.ready_until() == 0
        origin.is_away = False
        await node.settle(60)
        assert len(node.cached()) >= 600


async def test_what_was_fetched_long_ago_is_forgotten(tmp_path: Path) -> None:
    node = PlannedNode(tmp_path, 200)
    async with node.running():
        job = Job(node)
        await job.begin(range(100))
        await node.settle(20)
        await job.order(range(100, 200), epoch=1)
        job.progress(0, epoch=1)
        await node.settle(1)
        assert node.cached() == set(range(200))
        assert len(node.fetcher._fetched) == 100


async def test_large_files_are_not_fetched_ahead(node: PlannedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "FILE_BYTES_MAX", 999)
    async with node.running():
        job = Job(node)
        await job.begin(range(FILES))
        await node.settle()
        assert (node.cached(), job.reader.positions.cursor) == (set(), FILES)


async def test_data_sets_with_the_same_key_are_not_mixed(node: PlannedNode) -> None:
    """The two halves of a random_split have one key. Files that their workers open could belong to either."""
    async with node.running():
        first, second = Job(node, "a"), Job(node, "b", digest=b"other")
        second.start = PlanStart("b", "train", 0, 1, first.key, b"other", FILES, 4)
        second.key = first.key
        await first.begin(range(FILES))
        await second.begin(range(FILES))
        await first.learn({7: [node.paths[8]]})
        assert {reader.state for reader in node.plans.readers} == {"planned"}
        node.plans.end("b")
        node.plans.end("a")
        assert not node.plans._learned


async def test_keys_of_streams_that_ended_are_forgotten(node: PlannedNode) -> None:
    async with node.running():
        await Job(node).begin(range(FILES))
        for number in range(50):
            node.plans.start(start_of("t", FILES, b"digest", key=f"{number}"))
        assert len(node.plans._learned) == 2


async def test_names_that_take_long_are_no_silence(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        node.plans.start(job.start)
        for index in range(FILES):
            await node.plans.name(PlanNames(b"digest", index, node.paths[index]))
            await pass_time(5)
        await job.order(range(FILES), epoch=0)
        assert job.reader.state == "planned"


async def test_a_directory_that_could_not_be_listed_is_listed_later(
    node: PlannedNode, origin: FlakyOrigin
) -> None:
    async with node.running():
        node.plans.start(start_of("s", 2, b"d"))
        origin.is_away = True
        await node.plans.name(PlanNames(b"d", 0, b"/d/0"))
        origin.is_away = False
        await node.plans.name(PlanNames(b"d", 1, b"/d/1"))
        assert len(node.planned.numbers) == 1


async def test_a_report_of_absurd_samples_takes_no_number(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node, digest=b"")
        await job.begin([0])
        await node.plans.learn(PlanLearn(job.key, [FILES, (1 << 31) - 1], b"/d/1\0/d/2"))
        assert node.planned.numbers.number_of(FileId(1)) == NO_FILE
        assert len(node.planned.numbers) == 0


async def test_no_message_holds_the_loop(tmp_path: Path) -> None:
    """65,536 names, samples or reports at once, and 200 streams: others have their turn between."""
    node = PlannedNode(tmp_path, 2)
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            begin_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - begin_s)

    async with node.running():
        watching = asyncio.create_task(watch())
        node.plans.start(start_of("a", PLAN_NAMES_MAX, b"d"))
        names = b"\0".join([b"/d/1", b"/none/x"] * (PLAN_NAMES_MAX // 2))
        await node.plans.name(PlanNames(b"d", 0, names))
        await node.plans.learn(PlanLearn("k", list(range(PLAN_NAMES_MAX)), names))
        for number in range(200):
            node.plans.start(start_of(f"{number}", 100, b"e"))
            await node.plans.order(PlanOrder(f"{number}", 0, 0, bytes(400), True))
        await node.plans.order(PlanOrder("a", 0, 0, bytes(4 << 20), True))
        for _ in range(500):  # virtual time stands still while the other task runs
            await asyncio.sleep(0)
        watching.cancel()
    assert longest_s < 0.2


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (0, -1), (0, 1 << 62), (1 << 62, 0)])
def test_progress_is_within_a_plan(epoch: int, position: int) -> None:
    with pytest.raises(ValueError, match="not within a plan"):
        PlanProgress("s", epoch, position)


async def test_a_claimed_step_time_takes_no_more_than_a_share(tmp_path: Path) -> None:
    """A stream reports that it takes its samples in no time, so that all its deadlines are now. An honest reader that
    is due has half of the fetches."""
    node = PlannedNode(tmp_path, 2000)
    hostile, honest = Job(node, "hostile"), Job(node, "honest")
    async with node.running():
        await hostile.begin(range(1000))
        await honest.begin(range(1000, 2000))
        for job in (hostile, honest):
            assert job.reader.stream is not None
        for job, step_s in ((hostile, 1e-9), (honest, 0.01)):
            stream = job.reader.stream
            assert stream is not None
            stream.set_step_s(step_s)
        while node.fetcher.fetched_files < 200:
            await pass_time(0.001)
        assert len([number for number in node.cached() if number >= 1000]) > 50


async def test_fetches_of_a_plan_that_has_ended_are_none_of_the_next_one(
    node: PlannedNode, origin: FlakyOrigin
) -> None:
    """The last plan takes the numbers of its files with it, and the next one gives them to others."""
    async with node.running():
        origin.wait_s = 3.0
        for stream, paths in (("a", node.paths[:20]), ("b", node.paths[20:])):
            node.plans.start(start_of(stream, 20, stream.encode(), key=stream))
            await node.plans.name(PlanNames(stream.encode(), 0, b"\0".join(paths)))
            await node.plans.order(PlanOrder(stream, 0, 0, array("I", range(20)).tobytes(), True))
            await pass_time(1)
            if stream == "a":
                assert node.fetcher.in_flight == 20
                node.plans.end(stream)
        await node.settle(10)
        assert node.cached() == set(range(FILES))
