"""Sessions that are told of damaged files: each has forgotten them, or is cut off, before the node goes on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headrace.base.clock import monotonic_s
from headrace.entry.rpc import server
from headrace.entry.rpc.server import Subscribers
from headrace.wire.messages import Answer, Evicted, Invalidated


class Session:
    """Follows, and keeps what it is told; None at the end."""

    def __init__(self, subscribers: Subscribers) -> None:
        self.events: asyncio.Queue[Answer | None] = asyncio.Queue()
        self.following = asyncio.ensure_future(self._follow(subscribers))

    async def _follow(self, subscribers: Subscribers) -> None:
        async with contextlib.aclosing(subscribers.follow()) as events:  # type: ignore[type-var]
            async for event in events:
                self.events.put_nowait(event)
        self.events.put_nowait(None)


async def sessions_of(subscribers: Subscribers) -> list[Session]:
    sessions = [Session(subscribers) for _ in range(2)]
    while len(subscribers._queues) < 2:  # noqa: ASYNC110 - they follow by themselves
        await asyncio.sleep(0)
    return sessions


async def test_it_waits_for_all_who_follow() -> None:
    subscribers = Subscribers()
    await subscribers.drop_damaged([1])  # nobody follows
    sessions = await sessions_of(subscribers)
    dropped = asyncio.ensure_future(subscribers.drop_damaged([1, 2]))
    events = [await session.events.get() for session in sessions]
    receipts = [event.receipt for event in events if isinstance(event, Evicted)]
    assert events == [Evicted(ids=[1, 2], damaged=True, receipt=receipt) for receipt in receipts]
    assert len(set(receipts)) == 2
    assert 0 not in receipts
    for receipt in (0, -1, 1 << 40, receipts[0], receipts[0]):
        subscribers.acknowledge(receipt)
    await asyncio.sleep(0)
    assert not dropped.done()
    subscribers.acknowledge(receipts[1])
    await dropped
    subscribers.acknowledge(receipts[1])
    for session in sessions:
        session.following.cancel()


@pytest.mark.expected_warnings("headrace.entry.rpc.server")
async def test_who_leaves_or_does_not_answer_is_not_waited_for() -> None:
    subscribers = Subscribers()
    leaving, silent = await sessions_of(subscribers)
    dropped = asyncio.ensure_future(subscribers.drop_damaged([1]))
    assert isinstance(await leaving.events.get(), Evicted)
    leaving.following.cancel()
    assert isinstance(await silent.events.get(), Evicted)
    began_s = monotonic_s()
    await dropped
    assert monotonic_s() - began_s == pytest.approx(server.FORGET_LIMIT_S)
    assert await silent.events.get() is None  # it was cut off, comes back, and looks at everything again
    assert subscribers._queues == set()
    assert subscribers._receipts == {}


async def test_events_are_delivered_when_all_sessions_have_handled_them() -> None:
    subscribers = Subscribers()
    await subscribers.deliver()  # nobody follows
    sessions = await sessions_of(subscribers)
    changed = Invalidated(names=[(1, b"name")])
    subscribers.publish(changed)
    delivered = asyncio.ensure_future(subscribers.deliver())
    for session in sessions:
        assert await session.events.get() == changed, "in their order"
        receipt = await session.events.get()
        assert isinstance(receipt, Evicted)
        assert receipt.ids == []
        await asyncio.sleep(0)
        assert not delivered.done()
        subscribers.acknowledge(receipt.receipt)
    await delivered
    for session in sessions:
        session.following.cancel()


async def test_a_session_that_is_late_with_its_events_keeps_its_connection() -> None:
    """A call in the kernel may hold up a name for long, and a session that is cut off drops what it has open."""
    subscribers = Subscribers()
    sessions = await sessions_of(subscribers)
    began_s = monotonic_s()
    await subscribers.deliver()
    assert monotonic_s() - began_s == pytest.approx(server.FORGET_LIMIT_S)
    assert len(subscribers._queues) == 2
    assert subscribers._receipts == {}
    for session in sessions:
        session.following.cancel()


async def test_a_cancelled_wait_leaves_no_receipt() -> None:
    subscribers = Subscribers()
    sessions = await sessions_of(subscribers)
    waiting = asyncio.ensure_future(subscribers.deliver())
    await sessions[0].events.get()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert subscribers._receipts == {}
    for session in sessions:
        session.following.cancel()
