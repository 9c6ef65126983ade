"""The gate admits what the window allows, demand first, and loses no place to a cancelled waiter."""

from __future__ import annotations

import asyncio
import heapq
import itertools

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.base.promotion import Promotion
from headrace.dataplane.concurrency import START, Gate, Window
from headrace.testing.virtual_loop import pass_time

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


def _over_a_link(window: Window, reads: int, *, size_bytes: int, bytes_s: float, latency_s: float) -> float:
    """Read over a link as fast as the window permits. Return the share of the link's time that was used."""
    now_s = free_s = 0.0
    arriving: list[tuple[float, float]] = []
    for begun in itertools.count():
        while len(arriving) >= int(window.limit) or (arriving and begun >= reads):
            now_s, begun_s = heapq.heappop(arriving)
            window.record(bytes_read=size_bytes, seconds=now_s - begun_s, in_flight=len(arriving) + 1)
        if begun == reads:
            return reads * size_bytes / bytes_s / now_s
        free_s = max(free_s, now_s) + size_bytes / bytes_s
        heapq.heappush(arriving, (max(free_s, now_s + latency_s), now_s))
    raise AssertionError


@pytest.mark.parametrize("bytes_s, size_bytes", [(45e6, 322_957), (1.25e9, 8 << 20), (12.5e9, 8 << 20)])
def test_a_link_is_full_and_what_is_needed_next_waits_little(bytes_s: float, size_bytes: int) -> None:
    """All in flight share the link, so what is needed first waits for all of it."""
    window = Window(maximum=512)
    latency_s = 0.03
    assert _over_a_link(window, 4000, size_bytes=size_bytes, bytes_s=bytes_s, latency_s=latency_s) > 0.95
    fits = 3 * (latency_s * bytes_s / size_bytes + 1)  # by the tolerance
    assert window.limit < max(16, 1.2 * fits)


def test_a_few_reads_say_nothing_of_many() -> None:
    window = Window(maximum=128)
    for _ in range(1000):
        window.record(bytes_read=322_957, seconds=0.04, in_flight=2)
    assert window.limit == 8
    for _ in range(120):
        window.record(bytes_read=322_957, seconds=0.04, in_flight=int(window.limit))
    assert window.limit == 128, "it doubles again when more are read"


def test_a_hiccup_ends_no_doubling() -> None:
    window = Window(maximum=128)
    for number in range(1, 200):
        window.record(bytes_read=322_957, seconds=0.5 if number % 20 < 2 else 0.04)
    assert window.limit == 128


def test_after_an_overload_it_does_not_double() -> None:
    window = Window(maximum=128)
    window.record_overload()
    for _ in range(100):
        window.record(bytes_read=322_957, seconds=0.04, in_flight=1)
    for _ in range(8):
        window.record(bytes_read=322_957, seconds=0.04, in_flight=4)
    assert 4 < window.limit < 7


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


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_promoted_read_precedes_background_reads_and_has_one_place(cancelled: bool) -> None:
    gate, order, promotion = Gate(Window(maximum=1), bytes_max=1 << 30), list[str](), Promotion()

    async def one(name: str, promotion: Promotion | None = None) -> None:
        async with gate.enter(1, background=True, promotion=promotion):
            assert gate.in_flight == 1
            order.append(name)
            await asyncio.sleep(0)

    async with gate.enter(1, background=False):
        early = asyncio.ensure_future(one("early"))
        promoted = asyncio.ensure_future(one("promoted", promotion))
        late = asyncio.ensure_future(one("late"))
        await asyncio.sleep(0)
        promotion.promote()
        promotion.promote()
        if cancelled:
            promoted.cancel()
    await asyncio.gather(early, promoted, late, return_exceptions=True)
    assert order == (["early", "late"] if cancelled else ["promoted", "early", "late"])
    assert gate.in_flight == gate.bytes_in_flight == 0
    async with gate.enter(1, background=False):
        promotion.promote()  # later than its read: nothing waits


async def test_a_read_that_was_promoted_before_it_came_is_no_background_read() -> None:
    gate, promotion = Gate(Window(maximum=1), bytes_max=1 << 30), Promotion()
    promotion.promote()
    async with gate.enter(1, background=True):
        reads = [
            asyncio.ensure_future(gate.enter(1, background=True, promotion=which).__aenter__())
            for which in (None, promotion)
        ]
        await asyncio.sleep(0)
    await reads[1]
    assert not reads[0].done()
    gate._leave(1, as_background=False)
    await reads[0]


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


class LateReads:
    """A gate whose reads end when they are told to. A read of its size takes 0.1 s at best."""

    def __init__(self, *, limit: int, maximum: int) -> None:
        self.gate = Gate(Window(maximum=maximum, start=limit), bytes_max=1 << 30)
        self.gate.window._best_s[SIZE.bit_length()] = 0.1
        self.ends: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, *, background: bool, promotion: Promotion | None = None) -> asyncio.Event:
        end = asyncio.Event()
        self._tasks.append(asyncio.ensure_future(self._read(end, background, promotion)))
        self.ends.append(end)
        return end

    async def _read(self, end: asyncio.Event, background: bool, promotion: Promotion | None) -> None:
        async with self.gate.enter(SIZE, background=background, promotion=promotion):
            await end.wait()

    async def close(self) -> None:
        for end in self.ends:
            end.set()
        await asyncio.gather(*self._tasks)
        assert self.gate.in_flight == 0 and not self.gate._reads


SIZE = 1000


@pytest.mark.parametrize("promoted", [False, True])
async def test_while_the_window_grows_background_reads_wait_for_a_late_read(promoted: bool) -> None:
    """It has started before a reader waited for it, or since."""
    reads = LateReads(limit=16, maximum=64)
    promotion = Promotion()
    late = reads.begin(background=promoted, promotion=promotion if promoted else None)
    others = [reads.begin(background=True) for _ in range(15)]
    for _ in range(20):
        reads.begin(background=True)
    await pass_time(0.5)
    promotion.promote()
    others.pop().set()
    await pass_time(0.2)
    assert reads.gate.in_flight == 16, "it is not late yet"
    for end in others[:12]:
        end.set()
        await pass_time(0.01)
    assert reads.gate.in_flight == START, "some are in flight nevertheless"
    reads.begin(background=False)
    await pass_time(0.01)
    assert reads.gate.in_flight == START + 1, "a reader waits for it"
    late.set()
    await pass_time(0.01)
    assert reads.gate.in_flight == 16
    await reads.close()


async def test_once_the_window_has_grown_and_no_read_is_late_later_ones_keep_nobody() -> None:
    """An origin that answers some reads late would slow all others."""
    reads = LateReads(limit=16, maximum=64)
    late = reads.begin(background=False)
    others = [reads.begin(background=True) for _ in range(35)]
    await pass_time(0.7)
    for has_grown in (False, True):
        reads.gate.window._doubling = not has_grown
        others.pop(0).set()
        await pass_time(0.01)
        assert reads.gate.in_flight == 15 - has_grown
    late.set()
    await pass_time(0.01)
    assert reads.gate.in_flight == 16
    reads.begin(background=False)
    others.pop(0).set()
    await pass_time(0.7)
    others.pop(0).set()
    await pass_time(0.01)
    assert reads.gate.in_flight == 16, "the other one is late now"
    await reads.close()


async def test_an_overloaded_origin_lowers_the_limit() -> None:
    gate = Gate(Window(maximum=16), bytes_max=1 << 30)
    with pytest.raises(OriginUnavailableError):
        async with gate.enter(1, background=False):
            raise OriginUnavailableError("503")
    assert gate.window.limit == 4


@pytest.mark.parametrize(("limit", "bytes_max"), [(4, 100 * SIZE), (100, 4 * SIZE)])
async def test_background_reads_leave_a_share_to_those_of_readers(limit: int, bytes_max: int) -> None:
    """A peer may hold them for long. A read that is promoted while it waits takes a place of readers."""
    gate = Gate(Window(maximum=limit, start=limit), bytes_max=bytes_max, background_share=0.5)
    end, promotion, running = asyncio.Event(), Promotion(), list[str]()

    async def read(name: str, promotion: Promotion | None, *, background: bool) -> None:
        async with gate.enter(SIZE, background=background, promotion=promotion):
            running.append(name)
            await end.wait()

    tasks = [asyncio.ensure_future(read(f"load {n}", Promotion(), background=True)) for n in range(3)]
    tasks.append(asyncio.ensure_future(read("promoted", promotion, background=True)))
    await pass_time(0)
    assert running == ["load 0", "load 1"]
    tasks.append(asyncio.ensure_future(read("reader", None, background=False)))
    promotion.promote()
    await pass_time(0)
    assert running[2:] == ["promoted", "reader"] or running[2:] == ["reader", "promoted"]
    end.set()
    await asyncio.gather(*tasks)
    assert running[4:] == ["load 2"]
    assert gate.in_flight == gate.bytes_in_flight == 0
    async with gate.enter(10 * bytes_max, background=True):
        assert gate.in_flight == 1
