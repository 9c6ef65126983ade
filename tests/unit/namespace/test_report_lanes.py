"""Mounts share the places for lookups: each gets some, and an origin that hangs never has all."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.clock import monotonic_s
from headrace.namespace.report_lanes import FairGate, ReportLane
from headrace.testing.virtual_loop import pass_time

pytestmark = pytest.mark.timeout(60)


class HeldPlaces:
    """Work that holds its place until it is released, by mounts."""

    def __init__(self, gate: FairGate) -> None:
        self.gate = gate
        self.begun: list[bytes] = []
        self.tasks: dict[bytes, list[asyncio.Task[None]]] = {}
        self._ends: dict[bytes, list[asyncio.Event]] = {}

    async def start(self, mount: bytes, count: int) -> None:
        for _ in range(count):
            self.tasks.setdefault(mount, []).append(asyncio.ensure_future(self._hold(mount)))
        await pass_time(0.01)

    async def _hold(self, mount: bytes) -> None:
        end = asyncio.Event()
        async with self.gate.place(mount):
            self.begun.append(mount)
            self._ends.setdefault(mount, []).append(end)
            await end.wait()

    async def release(self, mount: bytes, count: int) -> None:
        for _ in range(count):
            self._ends[mount].pop(0).set()
        await pass_time(0.01)

    def running(self, mount: bytes) -> int:
        return len(self._ends.get(mount, ()))

    async def cancel(self) -> None:
        for tasks in self.tasks.values():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_mount_alone_has_all_places() -> None:
    places = HeldPlaces(FairGate(8, lambda: False))
    await places.start(b"/a", 20)
    assert places.running(b"/a") == 8
    await places.release(b"/a", 5)
    assert len(places.begun) == 13 and places.running(b"/a") == 8
    await places.cancel()


async def test_mounts_that_hang_leave_places_for_others() -> None:
    places = HeldPlaces(FairGate(8, lambda: True))
    for mount in (b"/a", b"/b", b"/c", b"/d"):
        await places.start(mount, 20)
    assert [places.running(mount) for mount in (b"/a", b"/b", b"/c", b"/d")] == [4, 2, 1, 1]
    await places.cancel()


async def test_mounts_take_turns() -> None:
    places = HeldPlaces(FairGate(4, lambda: True))
    await places.start(b"/a", 100)
    await places.start(b"/b", 3)
    await places.start(b"/c", 3)
    assert [places.running(mount) for mount in (b"/a", b"/b", b"/c")] == [2, 1, 1]
    for _ in range(2):
        await places.release(b"/b", 1)
        await places.release(b"/c", 1)
    assert places.begun.count(b"/b") == places.begun.count(b"/c") == 3, (
        "100 that came before do not delay them"
    )
    await places.cancel()


async def test_work_that_is_cancelled_gives_its_place_back() -> None:
    gate = FairGate(4, lambda: False)
    places = HeldPlaces(gate)
    await places.start(b"/a", 10)
    places.tasks[b"/a"][5].cancel()  # it waits
    await places.release(b"/a", 1)  # the next one has its turn
    places.tasks[b"/a"][6].cancel()  # at the moment when it would have had its own
    await places.release(b"/a", 1)
    await places.cancel()
    others = HeldPlaces(gate)
    await others.start(b"/b", 10)
    assert others.running(b"/b") == 4
    await others.cancel()


async def test_a_cancellation_at_the_moment_of_the_turn_loses_no_place() -> None:
    gate = FairGate(1, lambda: False)
    holder = gate.place(b"/a")
    await holder.__aenter__()
    waiting = asyncio.ensure_future(gate.place(b"/a").__aenter__())
    await pass_time(0.01)
    await holder.__aexit__(None, None, None)  # gives the place to the one that waits
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1), gate.place(b"/a"):
        pass


async def test_a_lane_keeps_its_rate() -> None:
    lane, begun_s = ReportLane(8, 100.0, lambda: True), monotonic_s()

    async def pass_through(mount: bytes) -> None:
        async with lane.turn(mount):
            pass

    await asyncio.gather(*(pass_through(b"/%d" % (number % 3)) for number in range(600)))
    assert 4.9 <= monotonic_s() - begun_s <= 6.1  # a second's worth may pass at once
