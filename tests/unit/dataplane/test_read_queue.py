"""Waiting reads go in an order that is fair to tenants."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from headrace.base.priority import Priority
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.read_queue import FairReadQueue, ReadClass

KIB = 1024


def filled(*reads: tuple[str, float, int, int]) -> tuple[FairReadQueue, list[str]]:
    """Return a queue with reads of tenants (tenant, share, size, count), and the list that names those admitted."""
    queue, admitted = FairReadQueue(), list[str]()
    loop = asyncio.get_running_loop()
    for tenant, share, size_bytes, count in reads:
        for _ in range(count):
            turn = loop.create_future()
            turn.add_done_callback(partial(_note, admitted, tenant))
            queue.add(size_bytes, turn, ReadClass(tenant, share))
    return queue, admitted


def _note(admitted: list[str], tenant: str, _: asyncio.Future[bool]) -> None:
    admitted.append(tenant)


async def admit(queue: FairReadQueue, count: int) -> None:
    for _ in range(count):
        assert queue
        queue.admit_next(as_background=False)
    await asyncio.sleep(0)


async def test_one_tenant_is_served_in_order() -> None:
    queue = FairReadQueue()
    turns = [asyncio.get_running_loop().create_future() for _ in range(20)]
    for number, turn in enumerate(turns):
        queue.add(number * KIB, turn, ReadClass())
    for number in range(20):
        assert queue and queue.next_size_bytes() == number * KIB
        queue.admit_next(as_background=False)
        assert [turn.done() for turn in turns] == [other <= number for other in range(20)]
    assert not queue


async def test_places_follow_the_shares() -> None:
    queue, admitted = filled(("a", 1.0, 256 * KIB, 100), ("b", 3.0, 256 * KIB, 100))
    await admit(queue, 80)
    assert abs(Counter(admitted)["b"] - 60) <= 2


async def test_bytes_count_and_not_only_reads() -> None:
    queue, admitted = filled(("large", 1.0, 8192 * KIB, 100), ("small", 1.0, 64 * KIB, 1000))
    await admit(queue, 330)
    cost = {"large": 8192 + 64, "small": 64 + 64}
    sums = {name: count * cost[name] for name, count in Counter(admitted).items()}
    assert 0.8 <= sums["large"] / sums["small"] <= 1.25


async def test_a_tenant_that_reads_little_goes_before_the_crowd() -> None:
    queue, admitted = filled(("crowd", 1.0, 1024 * KIB, 500))
    await admit(queue, 10)
    turn = asyncio.get_running_loop().create_future()
    queue.add(1024 * KIB, turn, ReadClass("quiet"))
    await admit(queue, 2)
    assert turn.done()
    assert len(admitted) == 11


async def test_reads_that_gave_up_are_passed_over() -> None:
    queue, admitted = filled(("a", 1.0, KIB, 1))
    gone = asyncio.get_running_loop().create_future()
    queue.add(KIB, gone, ReadClass())
    gone.cancel()
    await admit(queue, 1)
    assert admitted == ["a"]
    assert not queue


async def test_reads_that_gave_up_cost_their_tenant_nothing() -> None:
    queue, admitted = filled(("crowd", 1.0, 1024 * KIB, 50))
    loop = asyncio.get_running_loop()
    for _ in range(500):
        gone = loop.create_future()
        queue.add(1024 * KIB, gone, ReadClass("killed"))
        gone.cancel()
    turn = loop.create_future()
    queue.add(1024 * KIB, turn, ReadClass("killed"))
    await admit(queue, 2)
    assert turn.done()
    assert admitted == ["crowd"]


async def test_a_tenant_that_comes_back_is_owed_nothing() -> None:
    queue, admitted = filled(("a", 1.0, 64 * KIB, 1), ("b", 1.0, 64 * KIB, 200))
    await admit(queue, 100)
    for _ in range(50):
        turn = asyncio.get_running_loop().create_future()
        turn.add_done_callback(partial(_note, admitted, "a"))
        queue.add(64 * KIB, turn, ReadClass("a"))
    await admit(queue, 40)
    assert abs(Counter(admitted[100:])["a"] - 20) <= 1


async def test_background_reads_go_by_priority_after_all_others() -> None:
    gate = Gate(Window(maximum=1, start=1), bytes_max=1 << 30)
    order: list[str] = []
    leave = asyncio.Event()

    async def read(name: str, priority: Priority, *, background: bool) -> None:
        async with gate.enter(KIB, background=background, read_class=ReadClass("", 1.0, priority)):
            order.append(name)
            await leave.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read("first", Priority.NORMAL, background=False))
        await asyncio.sleep(0)
        for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
            tasks.create_task(read(priority.name, priority, background=True))
        await asyncio.sleep(0)
        tasks.create_task(read("reader", Priority.LOW, background=False))
        await asyncio.sleep(0)
        leave.set()
    assert order == ["first", "reader", "HIGH", "NORMAL", "LOW"]
