"""A put whose answer was lost has happened, or has not: the retry finds out, and nobody else's object suffers."""

from __future__ import annotations

import time

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    DeadlineExceededError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
)
from headrace.base.model import Attributes, ObjectInfo
from headrace.base.token_bucket import BURST_S
from headrace.origin.measure import MeasureOrigin
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import Absent, Condition, Origin
from headrace.origin.retry import PATIENCE_S, RetryOrigin
from headrace.origin.source import BytesPutSource
from headrace.origin.throttle import OriginLimits, ThrottleOrigin
from headrace.testing.virtual_loop import skipped_s
from tests.faulty_origin import FaultyOrigin, PlannedFault

NEVER = Deadline.never()
FAILURES = 5


async def put(origin: Origin, data: bytes, condition: Condition, deadline: Deadline = NEVER) -> ObjectInfo:
    given = Attributes(mode=0o600)
    return await origin.put(
        "f", BytesPutSource(data), condition=condition, attributes=given, deadline=deadline
    )


class Setting:
    def __init__(self) -> None:
        self.memory = MemoryOrigin()
        self.faulty = FaultyOrigin(self.memory)
        self.origin = RetryOrigin(self.faulty)

    async def now(self) -> bytes:
        info = await self.memory.head("f", deadline=NEVER)
        size = info.version.size_bytes
        arrived = await self.memory.read_range("f", 0, size, version=info.version, deadline=NEVER)
        return bytes(arrived.body)


@pytest.mark.parametrize("over", ["nothing", "a-version", "anything"])
@pytest.mark.parametrize("fault", [PlannedFault.LOST, PlannedFault.UNAVAILABLE])
async def test_a_put_that_broke_off_is_made_once(over: str, fault: PlannedFault) -> None:
    setting = Setting()
    condition: Condition = Absent() if over == "nothing" else None
    if over == "a-version":
        condition = setting.memory.hold("f", b"old")
    setting.faulty.fail("put", fault, numbers=range(FAILURES))
    info = await put(setting.origin, b"ours", condition)
    assert info.version == (await setting.memory.head("f", deadline=NEVER)).version
    assert await setting.now() == b"ours"
    assert setting.faulty.count("put") == (1 if fault is PlannedFault.LOST else FAILURES + 1)


async def test_a_lost_put_that_another_replaced_is_a_conflict() -> None:
    setting = Setting()
    setting.faulty.fail("put", PlannedFault.LOST, numbers=0)

    class Meddler(FaultyOrigin):
        async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
            setting.memory.hold("f", b"theirs")  # between our put, whose answer is lost, and our looking
            return await super().head(key, deadline=deadline)

    with pytest.raises(ConflictError):
        await put(RetryOrigin(Meddler(setting.faulty)), b"ours", Absent())
    assert await setting.now() == b"theirs"


async def test_a_conflict_is_not_tried_again() -> None:
    setting = Setting()
    setting.memory.hold("f", b"theirs")
    with pytest.raises(ConflictError):
        await put(setting.origin, b"ours", Absent())
    assert await setting.now() == b"theirs"
    assert setting.faulty.count("put") == 1 and not skipped_s()


async def test_a_put_is_given_up_when_its_caller_has_no_more_patience() -> None:
    """Persisting comes back to it by itself, and must not hold a place for as long as the origin may take."""
    setting, begun_s = Setting(), monotonic_s()
    setting.faulty.fail("put", PlannedFault.UNAVAILABLE)
    deadline = Deadline.after(600, patience_s=PATIENCE_S)
    with pytest.raises(OriginUnavailableError):
        await put(setting.origin, b"ours", None, deadline)
    assert monotonic_s() - begun_s <= PATIENCE_S
    assert 3 <= setting.faulty.count("put") <= 10


async def test_a_remove_whose_answer_was_lost_is_done() -> None:
    setting = Setting()
    version = setting.memory.hold("f", b"old")
    setting.faulty.fail("remove", PlannedFault.LOST, numbers=0)
    await setting.origin.remove("f", condition=version, deadline=NEVER)
    with pytest.raises(PathNotFoundError):
        await setting.now()
    with pytest.raises(PathNotFoundError):  # nothing was lost this time: there is none
        await setting.origin.remove("f", condition=None, deadline=NEVER)


async def test_folders_are_tried_again() -> None:
    setting = Setting()
    setting.faulty.fail("directory", PlannedFault.UNAVAILABLE, numbers=0)
    await setting.origin.make_directory("d", deadline=NEVER)
    setting.faulty.fail("directory", PlannedFault.UNAVAILABLE, numbers=0)
    await setting.origin.remove_directory("d", deadline=NEVER)
    assert setting.faulty.count("directory") == 4


async def test_puts_are_measured() -> None:
    setting = Setting()
    origin = MeasureOrigin(setting.faulty)
    await put(origin, b"12345", Absent())
    setting.faulty.fail("put", OriginError("f", why="by plan"), numbers=0)
    with pytest.raises(OriginError):
        await put(origin, b"1", None)
    await origin.remove("f", condition=None, deadline=NEVER)
    await origin.make_directory("d", deadline=NEVER)
    statistics = origin.statistics()
    assert statistics["put_requests"] == 2 and statistics["put_errors"] == 1
    assert statistics["remove_requests"] == statistics["directory_requests"] == 1
    assert statistics["bytes_written"] == 5 and statistics["requests"] == 4


async def test_puts_come_at_the_rate() -> None:
    origin = ThrottleOrigin(MemoryOrigin(), OriginLimits(bytes_per_s=100.0))
    begun_s = monotonic_s()
    for _ in range(10):
        await put(origin, b"x" * 100, None)
    assert monotonic_s() - begun_s == pytest.approx(10.0, abs=1.0)


async def test_a_large_put_is_paid_for_part_by_part() -> None:
    """It takes as long as its bytes take at the rate, less what was unused before."""
    size, rate = 24 << 20, 200.0 * (1 << 20)
    memory = MemoryOrigin()
    origin = ThrottleOrigin(memory, OriginLimits(bytes_per_s=rate))
    data = bytes(size)
    begun_s = time.monotonic()
    await put(origin, b"x" * (50 << 20), None)  # all that was unused
    await put(origin, data, None)
    took_s = time.monotonic() - begun_s
    assert took_s >= 0.9 * (size - rate * BURST_S + (50 << 20)) / rate
    head = await memory.head("f", deadline=NEVER)
    assert head.version.size_bytes == size


async def test_a_large_put_that_would_be_late_is_refused() -> None:
    memory = MemoryOrigin()
    origin = ThrottleOrigin(memory, OriginLimits(bytes_per_s=1000.0))
    source = BytesPutSource(bytes(9 << 20))
    with pytest.raises(DeadlineExceededError):
        await origin.put("f", source, condition=None, attributes=Attributes(), deadline=Deadline.after(60))
    with pytest.raises(PathNotFoundError):
        await memory.head("f", deadline=NEVER)
