from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    OriginDeniedError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import Version
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import NO_CREDENTIALS, Origin
from headrace.origin.retry import PAUSE_S, PAUSE_S_MAX, RetryOrigin
from headrace.testing.virtual_loop import pass_time, skipped_s
from tests.faulty_origin import FaultyOrigin, PlannedFault

DATA = b"0123456789"


class Setting:
    def __init__(self) -> None:
        memory = MemoryOrigin()
        self.version = memory.hold("f", DATA)
        self.faulty = FaultyOrigin(memory)
        self.origin = RetryOrigin(self.faulty)


async def _head(origin: Origin, version: Version, deadline: Deadline) -> None:
    await origin.head("f", deadline=deadline)


async def _read(origin: Origin, version: Version, deadline: Deadline) -> None:
    arrived = await origin.read_range("f", 2, 5, version=version, deadline=deadline)
    assert bytes(arrived.body) == DATA[2:5]


async def _list(origin: Origin, version: Version, deadline: Deadline) -> None:
    keys = [
        entry.key async for page in origin.list_directory("", deadline=deadline) for entry in page.objects
    ]
    assert keys == ["f"]


CALLS: dict[str, Callable[[Origin, Version, Deadline], Coroutine[None, None, None]]] = {
    "head": _head,
    "read": _read,
    "list": _list,
}


@pytest.mark.parametrize("call", list(CALLS))
async def test_what_mends_before_the_deadline_comes(call: str) -> None:
    setting, failures = Setting(), 40
    setting.faulty.fail(call, PlannedFault.UNAVAILABLE, numbers=range(failures))
    await CALLS[call](setting.origin, setting.version, Deadline.after(60))
    assert setting.faulty.count(call) == failures + 1
    assert len(skipped_s()) == failures
    assert 20 < sum(skipped_s()) < 60


@pytest.mark.parametrize("call", list(CALLS))
async def test_it_goes_on_until_the_deadline(call: str) -> None:
    setting, begun_s = Setting(), monotonic_s()
    setting.faulty.fail(call, PlannedFault.UNAVAILABLE)
    with pytest.raises(OriginUnavailableError):
        await CALLS[call](setting.origin, setting.version, Deadline.after(60))
    assert 60 - PAUSE_S_MAX <= monotonic_s() - begun_s <= 60
    assert setting.faulty.count(call) <= 60 / (PAUSE_S_MAX / 2) + 6


@pytest.mark.parametrize("call", list(CALLS))
async def test_a_caller_with_little_patience_is_told_soon(call: str) -> None:
    """Patience counts from the first failure: a call may take long before it fails."""
    setting, begun_s = Setting(), monotonic_s()
    setting.faulty.fail(call, PlannedFault.UNAVAILABLE)
    deadline = Deadline.after(60, patience_s=1.5)
    await pass_time(30)
    with pytest.raises(OriginUnavailableError):
        await CALLS[call](setting.origin, setting.version, deadline)
    assert 30.2 < monotonic_s() - begun_s <= 31.5
    assert 3 <= setting.faulty.count(call) <= 10


@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize(
    "error",
    [
        PathNotFoundError("f"),
        OriginDeniedError("f"),
        VersionChangedError("f"),
        DeadlineExceededError("f"),
        HeadraceError("f"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_will_not_mend_is_raised_at_once(call: str, error: HeadraceError) -> None:
    setting = Setting()
    setting.faulty.fail(call, error)
    with pytest.raises(type(error)):
        await CALLS[call](setting.origin, setting.version, Deadline.never())
    assert setting.faulty.count(call) == 1
    assert not skipped_s()


async def test_pauses_grow_with_jitter_between_half_and_all_of_a_limit() -> None:
    longest = [min(PAUSE_S_MAX, PAUSE_S * 2**n) for n in range(12)]
    drawn: list[list[float]] = []
    for _ in range(60):
        setting = Setting()
        setting.faulty.fail("head", PlannedFault.UNAVAILABLE, numbers=range(len(longest)))
        skipped_s().clear()
        await _head(setting.origin, setting.version, Deadline.never())
        assert all(limit / 2 <= pause <= limit for pause, limit in zip(skipped_s(), longest, strict=True))
        drawn.append(list(skipped_s()))
    for pauses, limit in zip(zip(*drawn, strict=True), longest, strict=True):
        # Sixty draws all in one half of the range: 1 in 10^18.
        assert min(pauses) < limit * 0.75 < max(pauses)


async def test_no_wait_goes_beyond_the_deadline() -> None:
    for within_s in (0.01, 0.1, 0.5, 2.0):
        setting = Setting()
        setting.faulty.fail("head", PlannedFault.UNAVAILABLE)
        deadline = Deadline.after(within_s)
        with pytest.raises(OriginUnavailableError):
            await _head(setting.origin, setting.version, deadline)
        assert monotonic_s() <= deadline.at_s


@pytest.mark.parametrize("breaks", [1, 3])
async def test_a_listing_that_broke_off_begins_anew_and_tells_each_name_once(breaks: int) -> None:
    memory = MemoryOrigin(page_size=2)
    names = [f"f{n}" for n in range(5)] + ["d/x"]
    for name in names:
        memory.hold(name, DATA)
    faulty = FaultyOrigin(memory)
    origin = RetryOrigin(faulty)
    faulty.fail("list", PlannedFault.HALF, numbers=range(breaks))
    pages = [page async for page in origin.list_directory("", deadline=Deadline.after(60))]
    keys, folders = (
        [info.key for page in pages for info in page.objects],
        [name for page in pages for name in page.directories],
    )
    assert sorted(keys) == sorted(names[:-1]) and folders == ["d"]
    assert faulty.count("list") == breaks + 1


async def test_a_listing_that_breaks_off_again_and_again_ends_with_the_deadline() -> None:
    setting = Setting()
    setting.faulty.fail("list", PlannedFault.HALF)
    with pytest.raises(OriginUnavailableError):
        await _list(setting.origin, setting.version, Deadline.after(30))
    assert setting.faulty.count("list") <= 30 / (PAUSE_S_MAX / 2) + 6


async def test_a_call_that_hangs_ends_with_the_deadline_and_is_not_repeated() -> None:
    setting = Setting()
    setting.faulty.fail("read", PlannedFault.HANG)
    with pytest.raises(DeadlineExceededError):
        await _read(setting.origin, setting.version, Deadline.after(0.05))
    assert setting.faulty.count("read") == 1
    assert setting.faulty.hanging == 0


async def test_a_cancel_ends_the_wait() -> None:
    setting = Setting()
    setting.faulty.fail("head", PlannedFault.UNAVAILABLE)
    task = asyncio.ensure_future(setting.origin.head("f", deadline=Deadline.never()))
    for _ in range(5):  # well within its first pause
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setting.faulty.count("head") == 1


@pytest.mark.parametrize("call", list(CALLS))
async def test_credentials_that_cannot_be_renewed_for_a_moment_are_no_refusal(call: str) -> None:
    """Without them from the start, the origin is refused at once."""
    setting = Setting()
    lacking = OriginDeniedError("f", why=NO_CREDENTIALS)
    setting.faulty.fail("head", lacking, numbers=range(1))
    with pytest.raises(OriginDeniedError):
        await _head(setting.origin, setting.version, Deadline.after(60))
    await _head(setting.origin, setting.version, Deadline.after(60))
    before = setting.faulty.count(call)
    setting.faulty.fail(call, lacking, numbers=range(3))
    await CALLS[call](setting.origin, setting.version, Deadline.after(60))
    assert setting.faulty.count(call) == before + 4
