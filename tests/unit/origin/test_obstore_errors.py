"""Answers of object stores become the right errors, through the real client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, OriginDeniedError, OriginUnavailableError
from headrace.base.model import Attributes, Version
from headrace.origin.origin import Absent, Condition, Origin
from headrace.origin.source import BytesPutSource
from tests.conformance.origin.origin_suite import listing_of, opened, soon
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, attach_s3, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

VERSION = Version(5, 10**9, '"0123456789abcdef0123456789abcdef"')


class _Server(StandInStore):
    status, body = 200, b""


class _Handler(StandInHandler):
    server: _Server

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.server.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer


@pytest.fixture
def server() -> Iterator[_Server]:
    with serving(_Server(_Handler)) as listening:
        yield listening


def answer(server: _Server, status: int, code: str) -> None:
    server.status = status
    server.body = f"<Error><Code>{code}</Code><Message>by plan</Message></Error>".encode()


async def put_error(origin: Origin, condition: Condition) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised:
        await origin.put(
            "f", BytesPutSource(b"12345"), condition=condition, attributes=Attributes(), deadline=soon()
        )
    return raised.value


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (409, "ConditionalRequestConflict"),
        (409, "OperationAborted"),
        (400, "RequestTimeout"),
        (400, "IncompleteBody"),
        (503, "SlowDown"),
    ],
)
async def test_an_answer_that_asks_for_another_attempt_is_no_verdict(
    server: _Server, status: int, code: str
) -> None:
    """A conflict would leave the object as it is, and the file of a user under another name."""
    async with opened(attach_s3(server)) as origin:
        answer(server, status, code)
        for condition in (None, Absent(), VERSION):
            error = await put_error(origin, condition)
            assert isinstance(error, OriginUnavailableError), (condition, error)


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"])
async def test_expired_credentials_are_denied(server: _Server, code: str) -> None:
    async with opened(attach_s3(server)) as origin:
        answer(server, 400, code)
        assert isinstance(await put_error(origin, None), OriginDeniedError)
        with pytest.raises(OriginDeniedError):
            await listing_of(origin, "")
        with pytest.raises(OriginDeniedError):
            await origin.read_range("f", 0, 5, version=VERSION, deadline=soon())


@pytest.mark.parametrize(
    "body", [b"", b"busy", b"<ListBucketResult><Name>bucket</Name><Contents><Key>a</Key>", b'{"error": 1}']
)
async def test_a_broken_listing_is_asked_for_again(server: _Server, body: bytes) -> None:
    async with opened(attach_s3(server)) as origin:
        server.body = body
        with pytest.raises(OriginUnavailableError):
            async for _ in origin.list_directory("", deadline=Deadline.after(60)):
                pass


async def test_a_page_of_a_proxy_is_no_object(server: _Server) -> None:
    server.body = b"<html><body>We will be back soon.</body></html>"
    async with opened(attach_s3(server)) as origin:
        with pytest.raises(OriginUnavailableError):
            await origin.head("f", deadline=soon())
        assert (await put_error(origin, None)).retryable
