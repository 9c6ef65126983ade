"""Workers that report before their stream begins: nothing is lost, and what is kept is little and soon forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from headrace.node.plan_requests import PlanRequests
from headrace.prefetch.early_reports import BYTES_MAX, KEPT_S, REPORTS_MAX
from headrace.testing.virtual_loop import pass_time
from headrace.wire.messages import PLAN_LEARNED_MAX, PlanLearn, PlanStart
from tests.unit.prefetch.job_fixture import Job, PlannedNode

FILES = 40


@pytest.fixture
def node(tmp_path: Path) -> PlannedNode:
    return PlannedNode(tmp_path, FILES)


class Messages:
    """Sends messages as processes do."""

    def __init__(self, node: PlannedNode) -> None:
        self._handlers = PlanRequests(node.plans, node.fetcher, node.predictions).handlers
        self._paths = node.paths

    async def learn(self, job: Job, indices: Sequence[int]) -> None:
        paths = b"\0".join(self._paths[index] for index in indices)
        await self._handlers[PlanLearn](PlanLearn(job.key, list(indices), paths))

    async def start(self, job: Job) -> None:
        await self._handlers[PlanStart](job.start)


async def learn_all(messages: Messages, job: Job, numbers: Iterable[int] = range(FILES)) -> None:
    for number in numbers:
        await messages.learn(job, [number])


async def test_what_workers_report_before_their_stream_begins_is_learned(node: PlannedNode) -> None:
    async with node.running():
        job, messages = Job(node, digest=b""), Messages(node)
        await learn_all(messages, job, range(0, FILES, 2))
        await messages.start(job)
        await learn_all(messages, job, range(1, FILES, 2))
        assert job.reader.state == "planned"
        assert (len(node.plans.early), node.plans.early.bytes) == (0, 0)
        await job.order(range(FILES), epoch=0)
        await node.settle()
        assert node.cached() == set(range(FILES))


async def test_a_node_that_forgot_a_stream_learns_until_it_is_told_again(node: PlannedNode) -> None:
    async with node.running():
        job, messages = Job(node, digest=b""), Messages(node)
        await messages.start(job)
        node.plans.end("s")
        await pass_time(KEPT_S + 1)
        await learn_all(messages, job)
        await messages.start(job)
        assert job.reader.state == "planned"


async def test_reports_of_other_data_sets_are_kept_apart(node: PlannedNode) -> None:
    async with node.running():
        first, second, messages = Job(node, "a", digest=b""), Job(node, "b", digest=b""), Messages(node)
        await learn_all(messages, first)
        await messages.start(second)
        assert second.reader.state == "learning"
        assert not second.reader.sample_map.has_files
        await messages.start(first)
        assert first.reader.state == "planned"


async def test_files_that_a_job_names_itself_are_not_learned_before_their_names(node: PlannedNode) -> None:
    async with node.running():
        job, messages = Job(node), Messages(node)
        await learn_all(messages, job)
        await messages.start(job)
        assert not job.reader.sample_map.has_files
        assert len(node.plans.early) == 0


async def test_late_reports_of_a_stream_that_ended_are_not_those_of_the_next_one(node: PlannedNode) -> None:
    """A process may have two data sets of the same class and length, one after the other."""
    async with node.running():
        job, messages = Job(node, digest=b""), Messages(node)
        await messages.start(job)
        node.plans.end("s")
        await learn_all(messages, job)
        assert len(node.plans.early) == 0
        await messages.start(job)
        assert not job.reader.sample_map.has_files


async def test_data_sets_with_the_same_key_learn_nothing_early(node: PlannedNode) -> None:
    async with node.running():
        first, second, messages = Job(node, "a", digest=b"1"), Job(node, "b", digest=b"2"), Messages(node)
        second.start = PlanStart("b", "train", 0, 1, first.key, b"2", FILES, 4)
        await messages.start(first)
        await messages.start(second)
        await learn_all(messages, first)
        assert len(node.plans.early) == 0


async def test_early_reports_are_few(node: PlannedNode) -> None:
    """An attack: reports without end, of data sets that nobody has. The newest are kept."""
    async with node.running():
        early, job, messages = node.plans.early, Job(node, digest=b""), Messages(node)
        for number in range(3 * REPORTS_MAX):
            await node.plans.learn(PlanLearn(f"{number}", [0], b"/d/0"))
            assert len(early) <= REPORTS_MAX
        await learn_all(messages, job)
        await messages.start(job)
        assert job.reader.state == "planned"


@pytest.mark.parametrize("shape", ["paths", "indices", "key"])
async def test_early_reports_are_small(node: PlannedNode, shape: str) -> None:
    """An attack: as large reports as messages may be. One that is larger than all may be is not kept."""
    many = PLAN_LEARNED_MAX
    async with node.running():
        early = node.plans.early
        for number in range(40):
            if shape == "paths":
                report = PlanLearn(f"{number}", [0], b"/" + bytes([100]) * (BYTES_MAX // 3))
            elif shape == "indices":
                report = PlanLearn(f"{number}", list(range(many)), b"\0" * (many - 1))
            else:
                report = PlanLearn(f"{number}" + "k" * (BYTES_MAX // 10), [0], b"/d/0")
            await node.plans.learn(report)
            assert early.bytes <= BYTES_MAX
        assert 0 < len(early) <= 3
        await node.plans.learn(PlanLearn("large", [0], bytes([100]) * BYTES_MAX))
        assert [report.key for report in early.take("large")] == []
        assert len(early) > 0


async def test_early_reports_are_forgotten_though_no_message_comes(node: PlannedNode) -> None:
    async with node.running():
        early, job, messages = node.plans.early, Job(node, digest=b""), Messages(node)
        await learn_all(messages, job)
        await pass_time(KEPT_S / 2)
        await node.plans.learn(PlanLearn("other", [0], b"/d/0"))
        await pass_time(KEPT_S / 2 + 0.1)
        assert len(early) <= 1
        await pass_time(2 * KEPT_S)
        assert (len(early), early.bytes) == (0, 0)
        await messages.start(job)
        assert not job.reader.sample_map.has_files


async def test_keys_of_ended_streams_are_few(node: PlannedNode) -> None:
    async with node.running():
        for number in range(2 * REPORTS_MAX):
            node.plans.start(PlanStart("s", "train", 0, 1, f"{number}", b"", 1, 1))
        assert len(node.plans.early._ended) <= REPORTS_MAX
