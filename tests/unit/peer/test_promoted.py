"""A background request is sent again when a reader comes to wait for it, or when it takes half of its time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.base.promotion import Promotion
from headrace.peer.promoted import request_by_urgency
from headrace.testing.virtual_loop import pass_time


class Request:
    """A request whose background run ends when `answer` is set; the one of a reader is answered with "sent again".
    background_flags: of each run, True for one in the background. is_cancelled: the background run was cancelled."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.background_flags: list[bool] = []
        self.is_cancelled = False
        self.promotion = Promotion()

    def run(self, *, is_arriving: bool = False) -> asyncio.Task[str]:
        work = request_by_urgency(
            self._send, self.promotion, Deadline.after(10), is_arriving=lambda: is_arriving
        )
        return asyncio.ensure_future(work)

    async def _send(self, *, background: bool) -> str:
        self.background_flags.append(background)
        if not background:
            return "sent again"
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


async def test_an_answer_is_returned_and_an_error_raised() -> None:
    for outcome in ("bytes", PeerError("node b", why="dead")):
        request = Request()
        running = request.run()
        await pass_time(4)
        if isinstance(outcome, str):
            request.answer.set_result(outcome)
            assert await running == outcome
        else:
            request.answer.set_exception(outcome)
            with pytest.raises(PeerError):
                await running
        request.promotion.promote()  # nobody hears it any more
        assert request.background_flags == [True] and not request.is_cancelled


async def test_a_request_for_which_a_reader_waits_is_not_sent_in_the_background() -> None:
    request = Request()
    request.promotion.promote()
    assert await request.run() == "sent again"
    assert await request_by_urgency(request._send, None, Deadline.after(10)) == "sent again"
    assert request.background_flags == [False, False]


async def test_a_promoted_request_is_given_up_at_once() -> None:
    request = Request()
    running = request.run()
    await pass_time(1)
    request.promotion.promote()
    assert await running == "sent again"
    assert request.is_cancelled


async def test_a_promoted_request_whose_bytes_arrive_goes_on() -> None:
    request = Request()
    running = request.run(is_arriving=True)
    await pass_time(1)
    request.promotion.promote()
    await pass_time(4)
    request.answer.set_result("bytes")
    assert await running == "bytes"


@pytest.mark.parametrize("is_promoted", [True, False])
async def test_bytes_that_stop_to_arrive_are_requested_again(*, is_promoted: bool) -> None:
    request = Request()
    running = request.run(is_arriving=True)
    await pass_time(0.1)
    if is_promoted:
        request.promotion.promote()
    await pass_time(4.8)
    assert not running.done()
    await pass_time(0.3)
    assert await running == "sent again"
    assert request.is_cancelled


async def test_a_cancelled_caller_ends_the_request() -> None:
    request = Request()
    running = request.run()
    await pass_time(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert request.is_cancelled
