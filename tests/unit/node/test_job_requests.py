"""The states of jobs, as the clients of a node get them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from headrace.jobs.progress import JobProgress
from headrace.node.requests import JobRequests
from headrace.wire.messages import JobStart, JobState

RUNNING = JobProgress().state(done=False)
DONE = JobProgress().state(done=True)


class OneJob:
    """Runs a job of two states."""

    def __init__(self, order: list[object]) -> None:
        self._order = order

    async def run(self, kind: str, path: str, options: dict[str, str]) -> AsyncIterator[JobState]:
        for state in (RUNNING, DONE):
            self._order.append("found")
            yield state


@pytest.mark.parametrize(("kind", "wait"), [("sync", ["delivered"]), ("load", [])])
async def test_a_sync_ends_when_the_kernels_know_what_changed(kind: str, wait: list[str]) -> None:
    """A program that began after it read an old file: the session had not heard of the new one."""
    order: list[object] = []

    async def deliver() -> None:
        order.append("delivered")

    requests = JobRequests(cast(Any, OneJob(order)), cast(Any, None), None, deliver)
    async for state in await requests.run(JobStart(kind=kind, path="/", options={})):
        order.append(state)
    assert order == ["found", RUNNING, "found", *wait, DONE]
