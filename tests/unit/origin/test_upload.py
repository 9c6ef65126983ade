from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.model import Attributes, Version
from headrace.origin.metadata import from_metadata, to_metadata
from headrace.origin.upload import ByteBudget, Sizes

TIB, MIB = 1 << 40, 1 << 20


@given(st.integers(1, 5 * TIB))
def test_no_upload_has_too_many_parts(size_bytes: int) -> None:
    sizes = Sizes()
    part = sizes.part_bytes(size_bytes)
    assert part >= sizes.part_min_bytes and part % MIB == 0
    assert -(-size_bytes // part) <= sizes.parts_max


@given(st.integers(1, 5 * TIB))
def test_parts_stay_within_memory(size_bytes: int) -> None:
    """But for those of files beyond 800 GiB, of which three must be held."""
    sizes = Sizes()
    part = sizes.part_bytes(size_bytes)
    in_flight = sizes.in_flight(part)
    assert 1 <= in_flight <= sizes.in_flight_max
    assert in_flight == 1 or (in_flight + 2) * part <= sizes.memory_max_bytes


async def turns() -> None:
    """Enough of the loop for all that can go on to have gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_memory_is_lent_in_the_order_of_asking() -> None:
    names: list[str] = []

    async def one(budget: ByteBudget, name: str, size: int, done: asyncio.Event) -> None:
        async with budget.reserve(size):
            names.append(name)
            await done.wait()

    budget, done, later = ByteBudget(10), asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(one(budget, "first", 6, done))
        await asyncio.sleep(0)
        large = group.create_task(one(budget, "larger than all", 99, later))
        await asyncio.sleep(0)
        group.create_task(one(budget, "small", 1, later))
        await turns()
        assert names == ["first"]  # the small one waits behind the large one
        done.set()
        await turns()
        assert names == ["first", "larger than all"]
        large.cancel()
        await turns()
        assert names == ["first", "larger than all", "small"]
        later.set()
    async with asyncio.timeout(60), budget.reserve(10):  # all of it came back
        pass


async def test_a_waiter_that_leaves_takes_nothing() -> None:
    budget = ByteBudget(10)
    async with budget.reserve(10):
        waiting = [asyncio.ensure_future(budget.reserve(5).__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
        for waiter in waiting:
            waiter.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(60), budget.reserve(10):
        pass


numbers = st.none() | st.integers(0, 2**32 - 2)  # the largest number means "unchanged" to chown(2)


@given(st.none() | st.integers(-(10**18), 10**19), st.none() | st.integers(0, 0o7777), numbers, numbers)
def test_attributes_come_back(
    mtime_ns: int | None, mode: int | None, uid: int | None, gid: int | None
) -> None:
    given_ = Attributes(mtime_ns, mode, uid, gid, "0123")
    attributes = from_metadata(to_metadata(given_))
    assert attributes == given_ and attributes is not None and attributes.put_id == "0123"
    assert from_metadata(to_metadata(Attributes(mtime_ns, mode, uid, gid))) in (given_, None)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"Content-Type": "text/plain", "color": "red"}, Attributes()),
        ({"mtime": "yesterday", "mode": "-1", "uid": "root"}, Attributes()),
        ({"mtime": "1600000000.5", "Content-Type": "x"}, Attributes(mtime_ns=1_600_000_000_500_000_000)),
        (
            {"Mtime": "1600000000", "Mode": "33188", "Uid": "7", "Gid": "8"},
            Attributes(16 * 10**17, 0o644, 7, 8),
        ),
        ({"mtime": "1600000000.1234567891"}, Attributes(mtime_ns=1_600_000_000_123_456_789)),
    ],
)
def test_metadata_of_others(metadata: dict[str, str], expected: Attributes | None) -> None:
    """s3fs writes whole seconds, rclone fractions; other things are left alone."""
    assert from_metadata(metadata) == expected


def test_equal_tokens_are_equal_versions_whatever_the_time() -> None:
    version, other = Version(5, 10**9, '"abc"'), Version(5, 3 * 10**9, '"abc"')
    assert version == other and hash(version) == hash(other)
    assert version != Version(6, 10**9, '"abc"') and version != Version(5, 10**9, '"abd"')
    assert Version(5, 1, 'W/"abc"') != Version(5, 2, 'W/"abc"')  # weak: may be of other bytes
    assert Version(5, 1) != Version(5, 2) and Version(5, 1) == Version(5, 1)
    assert Version(5, 1, '"abc"') != Version(5, 1)


async def test_a_holder_and_the_next_one_may_both_be_late() -> None:
    """Both leave in the same turn of the loop: the memory of the holder goes to one who is leaving."""
    budget = ByteBudget(10)

    async def one() -> None:
        async with asyncio.timeout(5), budget.reserve(10):
            await asyncio.Event().wait()

    outcomes = await asyncio.gather(one(), one(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [TimeoutError, TimeoutError]
    async with asyncio.timeout(5), budget.reserve(10):
        pass
