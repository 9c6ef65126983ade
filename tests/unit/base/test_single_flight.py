"""Calls with one key share a run, and the next run begins when it has ended, however it ended."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.single_flight import SingleFlight

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_run_that_was_cancelled_is_no_run_for_later_callers(has_begun: bool) -> None:
    """Also one that was cancelled before its first step: it never runs."""
    flights: SingleFlight[str, int] = SingleFlight()
    go_on = asyncio.Event()

    async def work() -> int:
        await go_on.wait()
        return 5

    first = flights.begin("key", work)
    if has_begun:
        await asyncio.sleep(0)
    await flights.stop()
    assert first.cancelled() and not flights.is_running("key")
    go_on.set()
    assert await flights.run("key", work) == 5
    assert await flights.run_anew("key", work) == 5
