"""Plans of training jobs, from their messages to files in the cache. Time is virtual."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import HeadraceError, UsageError
from headrace.dataplane.source import NoAccounts
from headrace.namespace.mounts import Mount
from headrace.node.plan_requests import PlanRequests
from headrace.prefetch import plan_table
from headrace.prefetch.learned_maps import KEPT_MAX, KEPT_S
from headrace.testing.virtual_loop import pass_time
from headrace.wire.messages import (
    PlanExtents,
    PlanLearn,
    PlanList,
    PlanNames,
    PlanOrder,
    PlanProgress,
    PlanSamples,
    PlanStart,
)
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.prefetch.job_fixture import Job, PlannedNode

FILES = 200


@pytest.fixture
def node(tmp_path: Path) -> PlannedNode:
    return PlannedNode(tmp_path, FILES)


def shuffled(seed: int, count: int = FILES) -> list[int]:
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


async def test_what_is_planned_is_in_the_cache_before_it_is_read(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        await node.settle()
        assert node.cached() == set(range(FILES))
        job.progress(FILES)
        assert (job.reader.hits, job.reader.misses, job.reader.state) == (FILES, 0, "planned")


async def test_little_of_an_epoch_is_fetched_before_it_begins(tmp_path: Path) -> None:
    """It may never begin. Its first 10 seconds are there when it does; its steps take a second here."""
    node = PlannedNode(tmp_path, 2 * FILES)
    async with node.running():
        job = Job(node)
        await job.begin(range(FILES))
        job.progress(4)
        assert job.reader.misses == 4  # the first batch comes late in each cold epoch
        await job.order(range(FILES, 2 * FILES), epoch=1)
        for step in range(1, FILES // 4 + 1):
            job.progress(4 * step)
            await node.settle(1)
            if step == FILES // 8:
                assert node.cached() == set(range(FILES))
        assert node.cached() == set(range(FILES + 44))
        job.progress(4, epoch=1)
        await node.settle()
        assert node.cached() == set(range(2 * FILES))


async def test_a_reader_whose_files_come_late_has_the_next_epoch_before_it_begins(tmp_path: Path) -> None:
    """Its origin is too slow for it, so that the time between two epochs is of use."""
    node = PlannedNode(tmp_path, 2 * FILES)
    async with node.running():
        job = Job(node)
        await job.begin(range(FILES))
        job.progress(FILES // 10)
        assert job.reader.misses == FILES // 10
        await job.order(range(FILES, 2 * FILES), epoch=1)
        await node.settle()
        assert node.cached() == set(range(2 * FILES))


class SlowedOrigin(NoAccounts):
    """Its budget lets background work wait."""

    def __init__(self) -> None:
        self.is_slowed = True

    async def admit(self, mount: Mount, size_bytes: int, job: str) -> None:
        assert not self.is_slowed, "such a wait takes a place of those in flight"

    def has_debt(self, mount: Mount) -> bool:
        return self.is_slowed


async def test_what_would_wait_for_a_budget_takes_no_place(node: PlannedNode) -> None:
    accounts = node.reads.sources.accounts = SlowedOrigin()
    async with node.running():
        await Job(node).begin(shuffled(1))
        await pass_time(5)
        assert (node.fetcher.in_flight, node.fetcher.failed_files, node.cached()) == (0, 0, set())
        accounts.is_slowed = False
        await node.settle()
        assert node.cached() == set(range(FILES))


async def test_batches_that_wait_for_the_workers_are_fetched_too(node: PlannedNode) -> None:
    """A loader takes batches from its sampler before its workers read them, one file at a time."""
    async with node.running():
        job = Job(node, batch_size=4)
        await job.begin(shuffled(1))
        job.progress(32)
        await node.settle()
        assert node.cached() == set(range(FILES))
        job.progress(FILES)
        await job.order(shuffled(2), epoch=1)
        job.progress(100, epoch=1)
        assert job.reader.positions.cursor == FILES + 100 - 64


async def test_a_second_process_need_not_name_the_files(node: PlannedNode) -> None:
    async with node.running():
        first, second = Job(node, "a"), Job(node, "b")
        await first.begin(shuffled(1))
        assert node.plans.start(second.start)
        assert second.reader.sample_map is first.reader.sample_map


async def test_a_map_that_is_learned_plans_the_next_epoch(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node, digest=b"")
        await job.begin(shuffled(1))
        await node.settle()
        assert node.cached() == set()
        assert job.reader.state == "learning"
        for first in range(0, FILES, 50):
            await job.learn({index: [node.paths[index]] for index in range(first, first + 50)})
        assert job.reader.state == "planned"
        job.progress(FILES)
        await job.order(shuffled(2), epoch=1)
        job.progress(0, epoch=1)
        await node.settle()
        assert node.cached() == set(range(FILES))


async def test_samples_of_several_files_are_fetched_with_all_of_them(tmp_path: Path) -> None:
    node = PlannedNode(tmp_path, 40)
    async with node.running():
        job = Job(node, digest=b"")
        await job.begin([3, 1])
        pairs = {index: [node.paths[index], node.paths[index + 20]] for index in (1, 3)}
        await job.learn(pairs)
        await job.learn({index: [node.paths[index]] for index in range(40) if index not in pairs})
        await job.order([3, 1], epoch=1)
        await node.settle()
        assert node.cached() == {1, 3, 21, 23}
        job.progress(1, epoch=1)
        assert job.reader.stream is not None
        assert job.reader.stream.position == 2


async def test_a_sample_that_opens_another_file_later_ends_the_plan(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        await job.learn({7: [node.paths[8]]})
        assert job.reader.state == "unreliable"
        assert not job.reader.is_fetched


async def test_what_is_needed_sooner_stays_in_a_cache_that_is_too_small(tmp_path: Path) -> None:
    """The cache holds a third of the data. The fetcher stays ahead of the reader, and drops only what it has read."""
    node = PlannedNode(tmp_path, 1500, capacity_bytes=4 * MIB)
    order = shuffled(3, 1500)
    async with node.running():
        job = Job(node, batch_size=10)
        await job.begin(order)
        for position in range(0, 1500, 75):
            await node.settle(1)
            needed = order[position : position + 75]
            assert node.cached(needed) == set(needed), position
            job.progress(position + 75)
        assert job.reader.misses == 0
        assert (
            node.fetcher.fetched_files < 3000
        )  # some go when the index begins to count; never again and again


async def test_a_stream_without_a_word_ends(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        await node.settle(50)
        job.progress(4)
        await node.settle(50)
        assert node.plans.readers
        await node.settle(20)
        assert not node.plans.readers
        with pytest.raises(UsageError, match="does not know its stream"):
            job.progress(8)


async def test_a_predicted_epoch_is_taken_over_and_a_wrong_prediction_replaced(node: PlannedNode) -> None:
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        await job.order(shuffled(2), epoch=1)
        stream = job.reader.stream
        job.progress(FILES)
        await job.order(shuffled(2), epoch=1)
        job.progress(8, epoch=1)
        assert job.reader.stream is stream
        assert stream is not None
        assert stream.position == FILES + 8
        await job.order(shuffled(9), epoch=1)
        job.progress(12, epoch=1)
        assert job.reader.stream is not stream
        assert job.reader.stream is not None
        assert job.reader.stream.position == 12


async def test_files_that_are_gone_or_outside_are_skipped(node: PlannedNode) -> None:
    node.paths[5], node.paths[6], node.paths[7] = b"/d/none", b"", b"no path"
    async with node.running():
        job = Job(node)
        await job.begin(shuffled(1))
        await node.settle()
        assert node.cached() == set(range(FILES)) - {5, 6, 7}


TEXT = st.sampled_from(["s", "t", ""])
NUMBER = st.one_of(st.integers(-1, 300), st.sampled_from([1 << 31, 1 << 62]))
NAMES = st.lists(st.sampled_from([b"/d/1", b"/d", b"/", b"", b"/d/../x", b"\xff" * 300, b"/d/2"])).map(
    b"\0".join
)
MESSAGES = st.one_of(
    st.builds(PlanStart, TEXT, TEXT, NUMBER, NUMBER, TEXT, st.sampled_from([b"", b"d"]), NUMBER, NUMBER),
    st.builds(PlanNames, st.sampled_from([b"", b"d"]), NUMBER, NAMES),
    st.builds(
        PlanExtents,
        st.sampled_from([b"", b"d"]),
        NUMBER,
        NAMES,
        st.sampled_from([b"\1\0\0\0", b"\2\0\0\0", b"\1\0\0\0" * 2, b"\1"]),
        st.lists(st.integers(0, 9), max_size=5).map(lambda bounds: array("Q", bounds).tobytes()),
    ),
    st.builds(PlanSamples, st.sampled_from([b"", b"d"]), NUMBER, st.integers(0, 9), st.binary(max_size=24)),
    st.builds(PlanOrder, TEXT, NUMBER, NUMBER, st.binary(max_size=64), st.booleans()),
    st.builds(PlanProgress, TEXT, NUMBER, NUMBER),
    st.builds(PlanLearn, TEXT, st.lists(NUMBER, max_size=4), NAMES),
)


def build_or_none(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Return a strategy that skips what the message itself refuses."""

    @st.composite
    def built(draw: st.DrawFn) -> object:
        try:
            return draw(strategy)
        except ValueError:
            return None

    return built()


HOSTILE: st.SearchStrategy[object] = build_or_none(MESSAGES)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HOSTILE, max_size=12))
async def test_whatever_a_program_says_the_node_answers(
    tmp_path_factory: pytest.TempPathFactory, sent: list[object]
) -> None:
    node = PlannedNode(tmp_path_factory.mktemp("hostile"), 3)
    async with node.running():
        for message in sent:
            try:
                await answer(node, message)
            except HeadraceError:
                pass
            await node.settle(1)
        assert node.cached() <= {1, 2}


async def answer(node: PlannedNode, message: object) -> None:
    match message:
        case PlanStart():
            node.plans.start(message)
        case PlanNames():
            await node.plans.name(message)
        case PlanExtents():
            await node.plans.divide(message)
        case PlanSamples():
            await node.plans.place(message)
        case PlanOrder():
            await node.plans.order(message)
        case PlanProgress():
            node.plans.progress(message)
        case PlanLearn():
            await node.plans.learn(message)


async def test_fetches_go_on_while_cached_files_are_looked_through(
    node: PlannedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million cached files take seconds."""
    in_flight: list[int] = []

    def catch_up() -> bool:
        in_flight.append(node.fetcher.in_flight)
        return len(in_flight) > 100

    monkeypatch.setattr(node.planned, "catch_up", catch_up)
    async with node.running():
        await Job(node).begin(shuffled(1))
        await node.settle()
        assert node.cached() == set(range(FILES))
    assert max(in_flight[:100]) > 0


async def test_rows_estimate_what_more_cache_and_bandwidth_give(tmp_path: Path) -> None:
    """A data set of 6,000,000 bytes, and a cache of 4 MiB of which 86 % may be filled."""
    node = PlannedNode(tmp_path, 6000, capacity_bytes=4 * MIB)
    requests = PlanRequests(node.plans, node.fetcher, node.predictions)
    async with node.running():
        job = Job(node, batch_size=10)
        await job.begin(shuffled(1, 6000))
        assert (await requests.handlers[PlanList](PlanList())).rows[0].estimates == []
        for step in range(1, 8):
            await pass_time(1.0)
            job.progress(step * 20)
        (row,) = (await requests.handlers[PlanList](PlanList())).rows
        now, more_cache, more_bandwidth = row.estimates
        assert now.hit_share == pytest.approx(0.86 * 4 * MIB / 6_000_000, rel=0.01)
        assert (more_cache.hit_share, more_cache.utilization) == (1.0, 1.0)
        assert more_bandwidth.hit_share == now.hit_share
        assert now.utilization is not None


async def learned(node: PlannedNode, stream: str, indices: Iterable[int] = range(FILES)) -> Job:
    """Return a job whose workers have told the files of some samples."""
    job = Job(node, stream, digest=b"")
    job.key = "key"
    job.start = PlanStart(stream, "train", 0, 1, "key", b"", FILES, 4)
    await job.begin(shuffled(1))
    samples = {index: [node.paths[index]] for index in indices}
    if samples:
        await job.learn(samples)
    return job


async def test_a_loader_that_is_made_anew_goes_on_with_what_was_learned(node: PlannedNode) -> None:
    """Programs make one for each epoch. The node hears of its end before that of the next one's begin."""
    async with node.running():
        await learned(node, "first")
        node.plans.end("first")
        await node.settle(300)
        second = await learned(node, "second", ())
        assert second.reader.state == "planned"
        await node.settle()
        assert node.cached() == set(range(FILES))
        second.progress(FILES)
        assert second.reader.hits == FILES


async def test_what_was_learned_is_forgotten_after_a_while(node: PlannedNode) -> None:
    async with node.running():
        await learned(node, "first")
        node.plans.end("first")
        assert len(node.planned.numbers) == FILES
        await pass_time(KEPT_S + 1)
        assert len(node.planned.numbers) == 0
        assert (await learned(node, "second", ())).reader.state == "learning"


async def test_what_was_learned_wrongly_is_not_kept(node: PlannedNode) -> None:
    async with node.running():
        job = await learned(node, "first")
        await job.learn({7: [node.paths[8]]})
        assert job.reader.state == "unreliable"
        node.plans.end("first")
        second = await learned(node, "second")
        assert second.reader.state == "planned"
        node.plans.end("second")
        await second.learn({7: [node.paths[8]]})  # of a worker that is late
        assert (await learned(node, "third")).reader.state == "planned"


async def test_another_data_set_with_the_key_takes_the_place_of_one_that_is_kept(node: PlannedNode) -> None:
    async with node.running():
        await learned(node, "first")
        node.plans.end("first")
        job = Job(node, "second", samples=FILES - 1)
        job.key = "key"
        job.start = PlanStart("second", "train", 0, 1, "key", b"", FILES - 1, 4)
        await job.begin(range(FILES - 1))
        assert job.reader.state == "learning"
        node.plans.end("second")
        named = Job(node, "third")
        named.start = PlanStart("third", "train", 0, 1, "key", b"digest", FILES, 4)
        await named.begin(shuffled(1))
        assert named.reader.state == "planned"


async def test_what_is_kept_gives_way_to_plans(tmp_path: Path) -> None:
    """All plans together are bounded, and maps without a stream go first."""
    node = PlannedNode(tmp_path, FILES, samples_max=4 * FILES)
    async with node.running():
        await learned(node, "first")
        node.plans.end("first")
        for number in range(1, 3):
            job = Job(node, f"job {number}", digest=b"")
            await job.begin(shuffled(number))
            node.plans.end(f"job {number}")
        large = Job(node, "large", digest=b"", samples=2 * FILES)
        node.plans.start(large.start)
        assert len(node.plans._learned) == 1


async def test_few_maps_are_kept(node: PlannedNode) -> None:
    async with node.running():
        for number in range(KEPT_MAX + 3):
            job = Job(node, f"job {number}", digest=b"")
            await job.begin(shuffled(number))
            await job.learn({0: [node.paths[0]]})
            node.plans.end(f"job {number}")
        assert len(node.plans._learned) == KEPT_MAX


async def test_numbers_of_many_files_are_not_kept(node: PlannedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_table, "KEPT_NUMBERS_MAX", FILES - 1)
    async with node.running():
        await learned(node, "first")
        node.plans.end("first")
        assert len(node.planned.numbers) == len(node.plans._learned) == 0
