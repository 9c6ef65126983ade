from __future__ import annotations

import asyncio

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    ConflictError,
    OriginDeniedError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.origin.measure import MeasureOrigin
from headrace.origin.memory import MemoryOrigin
from headrace.testing.virtual_loop import pass_time
from tests.faulty_origin import FaultyOrigin, PlannedFault

NEVER = Deadline.never()


async def test_calls_errors_bytes_and_pages_are_counted() -> None:
    memory = MemoryOrigin(page_size=2)
    version = memory.hold("f", b"0123456789")
    for n in range(4):
        memory.hold(f"g{n}", b"x")
    faulty = FaultyOrigin(memory)
    origin = MeasureOrigin(faulty)
    await origin.head("f", deadline=NEVER)
    faulty.fail("head", PlannedFault.UNAVAILABLE, numbers=0)
    with pytest.raises(OriginUnavailableError):
        await origin.head("f", deadline=NEVER)
    await origin.read_range("f", 2, 9, version=version, deadline=NEVER)
    faulty.fail("read", PlannedFault.UNAVAILABLE, numbers=0)
    with pytest.raises(OriginUnavailableError):
        await origin.read_range("f", 0, 10, version=version, deadline=NEVER)
    assert len([page async for page in origin.list_directory("", deadline=NEVER)]) == 3
    faulty.fail("list", PlannedFault.HALF)
    with pytest.raises(OriginUnavailableError):
        _ = [page async for page in origin.list_directory("", deadline=NEVER)]
    statistics = origin.statistics()
    assert statistics["head_requests"] == 2 and statistics["head_errors"] == 1
    assert statistics["read_requests"] == 2 and statistics["read_errors"] == 1
    assert statistics["list_requests"] == 5 and statistics["list_errors"] == 1
    assert statistics["requests"] == 9 and statistics["errors"] == 3
    assert statistics["bytes_read"] == 7


async def test_an_answer_that_refuses_is_no_error() -> None:
    """Programs look for files that are not there, and other writers come first: the origin is well."""
    memory = MemoryOrigin()
    version = memory.hold("f", b"old")
    memory.hold("f", b"longer")
    origin = MeasureOrigin(memory)
    with pytest.raises(PathNotFoundError):
        await origin.head("none", deadline=NEVER)
    with pytest.raises(VersionChangedError):
        await origin.read_range("f", 0, 3, version=version, deadline=NEVER)
    with pytest.raises(ConflictError):
        await origin.remove("f", condition=version, deadline=NEVER)
    assert origin.statistics()["requests"] == 3 and origin.statistics()["errors"] == 0


async def test_a_bucket_that_is_missing_or_denied_is_an_error() -> None:
    for error in (BucketNotFoundError("bucket", why="gone"), OriginDeniedError("f", why="by plan")):
        faulty = FaultyOrigin(MemoryOrigin())
        faulty.fail("head", error)
        origin = MeasureOrigin(faulty)
        with pytest.raises(type(error)):
            await origin.head("f", deadline=NEVER)
        assert origin.statistics()["errors"] == 1


async def test_latency_is_what_the_caller_waits() -> None:
    class Slow(MemoryOrigin):
        async def head(self, key: str, *, deadline: Deadline):  # type: ignore[no-untyped-def]
            await pass_time(2.0 if key == "slow" else 0.5)
            return await super().head(key, deadline=deadline)

    slow = Slow()
    slow.hold("slow", b"")
    slow.hold("fast", b"")
    origin = MeasureOrigin(slow)
    for key in ("slow", "fast", "fast"):
        await origin.head(key, deadline=NEVER)
    assert origin.statistics()["head_latency_s_sum"] == pytest.approx(3.0)
    assert origin.statistics()["head_latency_s_max"] == pytest.approx(2.0)


async def test_a_cancelled_call_is_no_request() -> None:
    faulty = FaultyOrigin(MemoryOrigin())
    faulty.fail("head", PlannedFault.HANG)
    origin = MeasureOrigin(faulty)
    call = asyncio.ensure_future(origin.head("f", deadline=Deadline.after(60)))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    assert origin.statistics()["requests"] == 0
    assert faulty.hanging == 0
