"""Virtual time: what passes at once, and what is waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.testing.virtual_loop import pass_time, run_virtual
from headrace.testing.waiting import until

DAY_S = 86400.0


def test_a_day_passes_at_once_and_every_clock_of_a_task_agrees() -> None:
    async def body() -> None:
        began_s, deadline = monotonic_s(), Deadline.after(DAY_S)
        ticks: list[float] = []
        asyncio.get_running_loop().call_later(60, lambda: ticks.append(monotonic_s() - began_s))
        await pass_time(DAY_S - 1)
        assert ticks == [60]
        assert deadline.left_s() == pytest.approx(1) and not deadline.passed()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(deadline.left_s()):
                await asyncio.Event().wait()
        assert deadline.passed()
        assert monotonic_s() - began_s == pytest.approx(DAY_S) == asyncio.get_running_loop().time() - began_s

    really_s = time.monotonic()
    run_virtual(body())
    assert time.monotonic() - really_s < 60
    assert abs(monotonic_s() - time.monotonic()) < 60, "the clock is left behind"


async def test_time_stands_still_for_a_task_that_computes() -> None:
    began_s = monotonic_s()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert monotonic_s() - began_s == 0


async def test_a_thread_is_waited_for() -> None:
    release = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(release.wait, 60))
    await asyncio.sleep(0)
    threading.Timer(0.05, release.set).start()
    async with asyncio.timeout(DAY_S):
        assert await work
    began_s = monotonic_s()
    await pass_time(DAY_S)
    assert monotonic_s() - began_s == pytest.approx(DAY_S)


async def test_a_thread_whose_caller_was_cancelled_is_waited_for() -> None:
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        release.wait(60)
        ended.set()

    call = asyncio.ensure_future(asyncio.to_thread(work))
    await until(begun.is_set)
    call.cancel()
    threading.Timer(0.05, release.set).start()
    await pass_time(DAY_S)
    assert call.cancelled() and ended.is_set()


async def test_a_call_that_is_cancelled_before_it_begins_is_not_waited_for() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        before = threads.submit(release.wait, 60)
        call = asyncio.get_running_loop().run_in_executor(threads, release.wait, 60)
        call.cancel()
        await pass_time(DAY_S)
        assert not before.done()
        release.set()


async def test_a_socket_is_waited_for() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    threading.Timer(0.05, far.send, (b"x",)).start()
    async with asyncio.timeout(DAY_S):
        assert await asyncio.get_running_loop().sock_recv(near, 1) == b"x"
    near.close()
    far.close()


def test_on_a_usual_loop_time_can_not_be_passed() -> None:
    with pytest.raises(RuntimeError, match="wait for a condition"):
        asyncio.run(pass_time(1))
