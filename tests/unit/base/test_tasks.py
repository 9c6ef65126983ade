"""Tasks have an owner: it ends them, and no failure is silent."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks, all_of


async def _fail(error: Exception) -> None:
    raise error


async def _last(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append(name)


@pytest.mark.expected_warnings("a background task failed")
async def test_a_failing_background_task_is_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    tasks = OwnedTasks()
    task = tasks.start(_fail(ValueError("a bug")))
    await asyncio.wait([task])
    await tasks.close()
    assert not tasks
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.name == "headrace.base.tasks"
    assert "_fail" in record.getMessage()
    assert record.exc_info is not None and str(record.exc_info[1]) == "a bug"


@pytest.mark.expected_warnings("a background task failed")
async def test_an_expected_failure_belongs_to_those_who_await_it(caplog: pytest.LogCaptureFixture) -> None:
    async with OwnedTasks(HeadraceError) as tasks:
        with pytest.raises(HeadraceError):
            await tasks.start(_fail(HeadraceError("read")))
        with pytest.raises(ValueError, match="a bug"):
            await tasks.start(_fail(ValueError("a bug")))
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a bug"]


async def test_closing_waits_until_the_tasks_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    async with OwnedTasks() as tasks:
        for name in ("a", "b"):
            tasks.start(_last(ended, name))
        await asyncio.sleep(0)
        assert tasks and ended == []
    assert sorted(ended) == ["a", "b"] and not tasks
    assert caplog.records == []  # a cancelled task did not fail


async def test_a_lost_cancellation_is_repeated() -> None:
    async def deaf() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    tasks = OwnedTasks(again_s=0.01)
    task = tasks.start(deaf())
    await asyncio.sleep(0)
    await tasks.close()
    assert task.cancelled()


async def test_the_first_failure_of_many_ends_the_others(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []
    with pytest.raises(ValueError, match="first"):
        await all_of([_last(ended, "other"), _fail(ValueError("first"))])
    assert ended == ["other"]
    assert await all_of([asyncio.sleep(0, 1), asyncio.sleep(0, 2)]) == [1, 2]
    assert caplog.records == []  # it was raised


async def test_a_task_that_has_ended_is_not_running() -> None:
    """Also before its callbacks have run, when those whom it woke may look."""
    tasks, states = OwnedTasks(), list[tuple[bool, bool]]()

    async def work() -> None:
        asyncio.get_running_loop().call_soon(lambda: states.append((task.done(), bool(tasks))))

    task = tasks.start(work())
    assert tasks
    await task
    assert states == [(True, False)]
