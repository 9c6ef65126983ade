"""An origin that goes away for a while: who asks it meanwhile, who waits, and when all go on. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    HeadraceError,
    OriginDeniedError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.intent import FOREGROUND
from headrace.dataplane.source import NoAccounts, OriginSource
from headrace.namespace.mounts import Mount
from headrace.origin.circuit import LIMITS, Circuit
from headrace.origin.memory import MemoryOrigin
from headrace.origin.retry import RetryOrigin
from headrace.testing.virtual_loop import pass_time
from tests.faulty_origin import FaultyOrigin, PlannedFault

TIMEOUT_S = 60.0
BACK_WITHIN_S = 2.0
CALLS = ("head", "list", "read")


class CircuitFixture:
    """Many keys of one origin, and the node's calls for them: range reads through a gate."""

    def __init__(self, keys: int) -> None:
        self.memory = MemoryOrigin()
        self.versions = {f"k{n}": self.memory.hold(f"k{n}", b"%d" % n * 10) for n in range(keys)}
        self.faulty = FaultyOrigin(self.memory)
        self.circuit = Circuit("memory://")
        self.origin = RetryOrigin(self.faulty, self.circuit)
        self.gate = Gate(Window(maximum=128), bytes_max=1 << 20)

    async def call(self, kind: str, key: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = Deadline.after(timeout_s)
        if kind == "head":
            assert (await self.origin.head(key, deadline=deadline)).version == self.versions[key]
        elif kind == "list":
            keys = [
                info.key
                async for page in self.origin.list_directory("", deadline=deadline)
                for info in page.objects
            ]
            assert sorted(keys) == sorted(self.versions)
        else:
            assert await self.read(key, timeout_s) == b"%d" % int(key[1:]) * 10

    async def read(self, key: str, timeout_s: float = TIMEOUT_S) -> bytes:
        mount = Mount("/", "memory://", self.origin, 1.0, self.circuit)
        version, path = self.versions[key], b"/" + key.encode()
        source = OriginSource(mount, key, path, version, self.gate, timeout_s, NoAccounts())
        async with source.read(0, self.versions[key].size_bytes, FOREGROUND) as arrived:
            return bytes(arrived.body)

    def asked(self) -> int:
        return len(self.faulty.asked)

    def away(self, fault: PlannedFault | HeadraceError = PlannedFault.UNAVAILABLE) -> None:
        for kind in CALLS:
            self.faulty.fail(kind, fault)


@pytest.mark.parametrize("away_s", [1.0, 4.0, 10.0, 30.0])
@pytest.mark.parametrize("kind", ["head", "read"])
async def test_a_thousand_calls_wait_and_one_asks(kind: str, away_s: float) -> None:
    world = CircuitFixture(1000)
    world.away()
    calls = [asyncio.ensure_future(world.call(kind, key)) for key in world.versions]
    await pass_time(away_s)
    during = world.asked()
    report = world.circuit.statistics()
    world.faulty.mend()
    before_s = monotonic_s()
    await asyncio.gather(*calls)
    assert monotonic_s() - before_s <= BACK_WITHIN_S
    # At first those that are let ask at one time; then probes, which are never closer than half a pause.
    first = len(world.versions) if kind == "head" else int(world.gate.window.maximum)
    assert during <= first + 5 + away_s / (LIMITS.pause_s_max / 2)
    assert report["waiting"] == len(calls)
    assert report["away_s"] == pytest.approx(away_s, abs=0.1)
    assert report["trouble"] == "unavailable by plan"
    assert 0 <= float(report["next_try_s"]) <= LIMITS.pause_s_max
    assert world.circuit.closed and world.circuit.statistics()["away_s"] == 0


@pytest.mark.parametrize("kind", CALLS)
async def test_what_waits_longer_than_its_limit_fails_with_the_cause(kind: str) -> None:
    world = CircuitFixture(20)
    world.away()
    begun_s = monotonic_s()
    ended = await asyncio.gather(
        *(world.call(kind, key, 7.0) for key in world.versions), return_exceptions=True
    )
    assert monotonic_s() - begun_s <= 7.01
    assert all(isinstance(error, OriginUnavailableError) for error in ended)
    assert all("unavailable by plan" in str(error) for error in ended)


async def test_reads_that_wait_hold_no_place_among_the_reads_in_flight() -> None:
    """The gate is one for all origins: those that answer are read meanwhile."""
    world, other = CircuitFixture(200), CircuitFixture(1)
    other.gate = world.gate
    world.away()
    calls = [asyncio.ensure_future(world.call("read", key)) for key in world.versions]
    await pass_time(2.0)
    begun_s = monotonic_s()
    await other.call("read", "k0")
    assert monotonic_s() - begun_s < LIMITS.pause_s_max
    assert world.gate.in_flight <= 1
    world.faulty.mend()
    await asyncio.gather(*calls)


async def test_an_outage_does_not_shrink_the_window() -> None:
    world = CircuitFixture(100)
    await asyncio.gather(*(world.call("read", key) for key in world.versions))
    limit = world.gate.window.limit
    world.away()
    calls = [asyncio.ensure_future(world.call("read", key)) for key in world.versions]
    await pass_time(10.0)
    assert world.gate.window.limit == limit
    world.faulty.mend()
    await asyncio.gather(*calls)


@pytest.mark.parametrize(
    "error",
    [PathNotFoundError("k"), OriginDeniedError("k"), VersionChangedError("k")],
    ids=lambda error: type(error).__name__,
)
async def test_answers_about_keys_open_nothing(error: HeadraceError) -> None:
    world = CircuitFixture(10)
    world.faulty.fail("head", error)
    ended = await asyncio.gather(
        *(world.call("head", key, 5.0) for key in [*world.versions] * 2), return_exceptions=True
    )
    assert all(isinstance(answer, type(error)) for answer in ended)
    assert world.circuit.closed
    await world.call("read", "k1")


async def test_one_call_that_fails_again_and_again_opens_nothing() -> None:
    world = CircuitFixture(1)
    world.faulty.fail("head", PlannedFault.UNAVAILABLE)
    with pytest.raises(OriginUnavailableError):
        await world.call("head", "k0")
    assert world.faulty.count("head") > LIMITS.failures_max
    assert world.circuit.closed


async def test_a_bad_key_holds_up_no_other() -> None:
    """However many want it: when the circuit opens for it, another key is the one that tries."""
    world, began_s = CircuitFixture(30), monotonic_s()
    world.faulty.fail("head", PlannedFault.UNAVAILABLE)
    bad = [asyncio.ensure_future(world.call("head", "k0", 20.0)) for _ in range(50)]
    await pass_time(1.0)
    for key in [*world.versions][1:]:
        begun_s = monotonic_s()
        await world.call("read", key)
        assert monotonic_s() - begun_s <= LIMITS.pause_s_max + 0.01
    assert monotonic_s() - began_s < 20
    ended = await asyncio.gather(*bad, return_exceptions=True)
    assert all(isinstance(error, OriginUnavailableError) for error in ended)


async def test_a_probe_that_hears_nothing_is_followed_by_another() -> None:
    world = CircuitFixture(20)
    world.away()
    calls = [asyncio.ensure_future(world.call("head", key)) for key in world.versions]
    await pass_time(5.0)
    world.away(PlannedFault.HANG)
    await pass_time(5.0)
    assert 1 <= world.faulty.hanging <= 6
    world.faulty.mend()
    silent = world.faulty.hanging
    begun_s = monotonic_s()
    done, waiting = await asyncio.wait(calls, timeout=BACK_WITHIN_S)
    assert monotonic_s() - begun_s <= BACK_WITHIN_S
    assert len(waiting) == silent and all(task.exception() is None for task in done)
    for task in waiting:
        task.cancel()


async def test_what_the_origin_asks_for_is_waited_for() -> None:
    """Retry-After: nobody asks before, and who can't wait so long is told at once."""
    world = CircuitFixture(50)

    async def wished(key: str, error: HeadraceError) -> float:
        return 8.0

    world.origin = RetryOrigin(world.faulty, world.circuit, wished)
    world.away()
    begun_s = monotonic_s()
    with pytest.raises(OriginUnavailableError):
        await world.call("head", "k0", 5.0)
    assert monotonic_s() == begun_s
    calls = [asyncio.ensure_future(world.call("head", key)) for key in world.versions]
    world.faulty.mend()
    await pass_time(7.9)
    assert world.asked() == 1
    await asyncio.gather(*calls)
    assert monotonic_s() - begun_s == pytest.approx(8.0, abs=0.1)


async def test_a_share_of_failures_fails_no_read() -> None:
    """Every second request is refused for ten seconds."""
    world = CircuitFixture(300)
    world.faulty.fail("read", PlannedFault.UNAVAILABLE, numbers=range(0, 100_000, 2))
    calls = [asyncio.ensure_future(world.call("read", key)) for key in world.versions]
    await pass_time(10.0)
    world.faulty.mend()
    await asyncio.gather(*calls)


async def test_cancelled_waiters_are_forgotten_and_the_next_one_tries() -> None:
    world = CircuitFixture(50)
    world.away()
    calls = [asyncio.ensure_future(world.call("head", key)) for key in world.versions]
    await pass_time(3.0)
    for task in calls[:-1]:
        task.cancel()
    await asyncio.gather(*calls[:-1], return_exceptions=True)
    assert int(world.circuit.statistics()["waiting"]) <= 1
    world.faulty.mend()
    await asyncio.wait_for(calls[-1], BACK_WITHIN_S)
