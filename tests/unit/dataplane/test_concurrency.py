"""The gate admits what the window allows, demand first, and loses no place to a cancelled waiter."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.dataplane.concurrency import Gate, Window


def test_overload_halves_and_success_grows() -> None:
    window = Window(maximum=32)
    window.overloaded()
    assert window.limit == 4
    for _ in range(100):
        window.succeeded(bytes_read=1 << 20, seconds=0.01)
    assert window.limit > 8


def test_no_more_than_the_limit_are_inside_and_demand_goes_first() -> None:
    async def scene() -> list[str]:
        gate = Gate(Window(maximum=1))
        order: list[str] = []
        leave = asyncio.Event()

        async def one(name: str, *, background: bool) -> None:
            async with gate.enter(background=background):
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
        return order

    assert asyncio.run(scene()) == ["first", "demand", "background"]


def test_a_cancelled_waiter_gives_its_place_on() -> None:
    async def scene() -> int:
        gate = Gate(Window(maximum=1))
        async with gate.enter(background=False):
            waiting = asyncio.ensure_future(gate._acquire(gate._demand))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with gate.enter(background=True):
            pass
        return gate.in_flight

    assert asyncio.run(asyncio.wait_for(scene(), 5)) == 0


def test_an_overloaded_origin_lowers_the_limit() -> None:
    async def scene() -> float:
        gate = Gate(Window(maximum=16))
        with pytest.raises(OriginUnavailableError):
            async with gate.enter(background=False):
                raise OriginUnavailableError("503")
        return gate.window.limit

    assert asyncio.run(scene()) == 4
