"""The gate admits what the window allows, demand first, and loses no place to a cancelled waiter."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.dataplane.concurrency import Gate, Window

pytestmark = pytest.mark.timeout(60)


def test_overload_halves_and_success_grows() -> None:
    window = Window(maximum=32)
    window.record_overload()
    assert window.limit == 4
    for _ in range(100):
        window.record(bytes_read=1 << 20, seconds=0.01)
    assert window.limit > 8


def test_it_doubles_while_answers_come_as_fast_as_the_first() -> None:
    window = Window(maximum=128)
    for _ in range(120):
        window.record(bytes_read=110_000, seconds=0.03)
    assert window.limit == 128


def test_answers_that_queue_stop_the_growth() -> None:
    """A full link: each answer takes as long as what is in flight makes it."""
    window = Window(maximum=128)
    for _ in range(19_000):
        window.record(bytes_read=8 << 20, seconds=0.01 * window.limit)
        assert window.limit < 40
    assert window.limit > 16


def test_small_reads_are_not_compared_with_large_ones() -> None:
    window = Window(maximum=64)
    for _ in range(200):
        window.record(bytes_read=8 << 20, seconds=0.3)
        window.record(bytes_read=100_000, seconds=0.02)
    assert window.limit == 64


async def _pass(gate: Gate, size_bytes: int) -> None:
    async with gate.enter(size_bytes, background=False):
        await asyncio.sleep(0)


async def test_bytes_in_flight_are_bounded_but_one_read_always_goes() -> None:
    gate = Gate(Window(maximum=16), bytes_max=10)
    async with gate.enter(100, background=False):
        async with asyncio.TaskGroup() as tasks:
            small = [tasks.create_task(_pass(gate, size_bytes)) for size_bytes in (6, 4, 1)]
            await asyncio.sleep(0)
            assert gate.in_flight == 1
            for task in small:
                task.cancel()
    async with gate.enter(6, background=False), gate.enter(4, background=False):
        third = asyncio.ensure_future(_pass(gate, 1))
        await asyncio.sleep(0)
        assert (gate.in_flight, gate.bytes_in_flight) == (2, 10)
    await third
    assert gate.in_flight == gate.bytes_in_flight == 0


async def test_no_more_than_the_limit_are_inside_and_demand_goes_first() -> None:
    gate = Gate(Window(maximum=1), bytes_max=1 << 30)
    order: list[str] = []
    leave = asyncio.Event()

    async def one(name: str, *, background: bool) -> None:
        async with gate.enter(1, background=background):
            assert gate.in_flight == 1
            order.append(name)
            await leave.wait()

    first = asyncio.ensure_future(one("first", background=True))
    await asyncio.sleep(0)
    rest = [
        asyncio.ensure_future(one("background", background=True)),
        asyncio.ensure_future(one("demand", background=False)),
    ]
    await asyncio.sleep(0)
    leave.set()
    await asyncio.gather(first, *rest)
    assert order == ["first", "demand", "background"]


async def test_a_cancelled_waiter_gives_its_place_on() -> None:
    gate = Gate(Window(maximum=1), bytes_max=1 << 30)
    async with gate.enter(1, background=False):
        waiting = asyncio.ensure_future(_pass(gate, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with gate.enter(1, background=True):
        pass
    assert gate.in_flight == 0


async def test_an_overloaded_origin_lowers_the_limit() -> None:
    gate = Gate(Window(maximum=16), bytes_max=1 << 30)
    with pytest.raises(OriginUnavailableError):
        async with gate.enter(1, background=False):
            raise OriginUnavailableError("503")
    assert gate.window.limit == 4
