from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import BucketNotFoundError, OriginDeniedError, OriginUnavailableError
from headrace.origin.factory import build_origin
from headrace.origin.retry_after import LONGEST_S, parse_retry_after
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, s3_options, serving

NOW = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 12 ", 12),
        ("3600", LONGEST_S),
        ("999999999999999999999999", 0),
        (format_datetime(NOW + timedelta(seconds=9), usegmt=True), 9),
        (format_datetime(NOW + timedelta(days=300), usegmt=True), LONGEST_S),
        (format_datetime(NOW - timedelta(seconds=9), usegmt=True), 0),
        ("Monday, 23-Nov-26 12:00:05 GMT", 5),
        ("-3", 0),
        ("1.5", 0),
        ("soon", 0),
        ("", 0),
        ("Mon, 99 Nov 2026 12:00:00 GMT", 0),
        ("\x00\xff", 0),
    ],
)
def test_what_the_header_means(text: str, seconds: float) -> None:
    assert parse_retry_after(text, NOW) == seconds


class _Server(StandInStore):
    """drips: a request with a signature in its URL gets a response without end, byte by byte, until `ended`."""

    status, retry_after, requests, drips = 503, "", 0, False

    def __init__(self, handler: type[StandInHandler]) -> None:
        super().__init__(handler)
        self.ended = threading.Event()
        self.dripping = 0


class _Handler(StandInHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.requests += 1
        if self.server.drips and "X-Amz-Signature" in self.path:
            self._drip()
            return
        self.send_response(self.server.status)
        if self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def _drip(self) -> None:
        self.server.dripping += 1
        self.wfile.write(b"HTTP/1.1 503 Slow\r\nX-Endless: ")
        while not self.server.ended.wait(0.2):
            self.wfile.write(b"a")


@pytest.fixture
def server() -> Iterator[_Server]:
    with serving(_Server(_Handler)) as listening:
        yield listening
        listening.ended.set()


@pytest.mark.real_time  # obstore waits for the server in threads of its own
@pytest.mark.parametrize(("status", "waits"), [(503, True), (429, True), (500, False)])
async def test_a_stores_wish_is_heard(server: _Server, status: int, waits: bool) -> None:
    """obstore tells no header of a failed answer: the store is asked for it once."""
    server.status, server.retry_after = status, "20"
    origin = build_origin("s3://bucket", s3_options(server))
    with pytest.raises(OriginUnavailableError):
        await origin.head("f", deadline=Deadline.after(10 if waits else 0.3))
    assert not waits or server.requests == 2
    assert origin.circuit.closed != waits
    assert (float(origin.statistics()["next_try_s"]) > 15) == waits
    await origin.close()


@pytest.mark.real_time
@pytest.mark.parametrize(("status", "kind"), [(403, OriginDeniedError), (404, BucketNotFoundError)])
async def test_an_answer_about_a_key_is_no_wish(server: _Server, status: int, kind: type[Exception]) -> None:
    server.status, server.retry_after = status, "20"
    origin = build_origin("s3://bucket", s3_options(server))
    with pytest.raises(kind):
        await origin.head("f", deadline=Deadline.after(5))
    assert origin.circuit.closed
    await origin.close()


@pytest.mark.real_time
async def test_a_store_that_answers_without_end_holds_no_call(server: _Server) -> None:
    """Nor does it hold more than one thread, however often it is overloaded."""
    server.status, server.drips = 503, True
    origin = build_origin("s3://bucket", s3_options(server))
    async with asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(OriginUnavailableError):
                await origin.head("f", deadline=Deadline.after(4))
    assert server.dripping == 1
    server.ended.set()
    await origin.close()
