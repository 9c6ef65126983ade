"""A store may take minutes to complete an upload in parts, and its answer may be no result: the upload is found."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator

import pytest

from headrace.base.model import Attributes
from headrace.origin import cloud
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.origin.options import parse_options
from headrace.origin.origin import Origin
from headrace.origin.retry import RetryOrigin
from headrace.origin.source import BytesPutSource
from headrace.origin.upload import Sizes
from tests.conformance.origin.origin_suite import opened, soon
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, s3_options, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

MIB = 1 << 20
DATA = bytes(range(256)) * (12 << 10)  # 3 MiB
DECLARATION = b'<?xml version="1.0" encoding="UTF-8"?>\n'
RESULT = b'<CompleteMultipartUploadResult><ETag>"0"</ETag></CompleteMultipartUploadResult>'


def failure(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>by plan</Message></Error>".encode()


class _Store(StandInStore):
    """A bucket with one object. completions: the pieces of the next answers to completed uploads, and whether each of
    those uploads is done."""

    def __init__(self, handler: type[StandInHandler]) -> None:
        super().__init__(handler)
        self.completions: list[tuple[list[bytes], bool]] = []
        self.completed = 0
        self.parts: dict[int, bytes] = {}
        self.begun_metadata: dict[str, str] = {}
        self.object: tuple[bytes, dict[str, str]] | None = None


class _Handler(StandInHandler):
    server: _Store

    def do_HEAD(self) -> None:
        if self.server.object is None:
            self._answer(404)
            return
        body, metadata = self.server.object
        headers = {"ETag": '"0"', "Last-Modified": "Thu, 01 Jan 1970 00:00:01 GMT", **metadata}
        self._answer(200, headers, length=len(body))

    def do_GET(self) -> None:
        self._answer(200, body=b"<ListBucketResult></ListBucketResult>")

    def do_DELETE(self) -> None:
        self._answer(204)

    def do_PUT(self) -> None:
        number = int(dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))["partNumber"])
        self.server.parts[number] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, {"ETag": f'"{number}"'})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "uploads" in self.path:
            self.server.begun_metadata = {
                name: value for name, value in self.headers.items() if name.lower().startswith("x-amz-meta-")
            }
            begun = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, body=begun)
        else:
            self._complete()

    def _complete(self) -> None:
        self.server.completed += 1
        pieces, is_done = self.server.completions.pop(0)
        if is_done:
            body = b"".join(self.server.parts[number] for number in sorted(self.server.parts))
            self.server.object = (body, self.server.begun_metadata)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _answer(
        self, status: int, headers: dict[str, str] | None = None, *, body: bytes = b"", length: int = 0
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def store() -> Iterator[_Store]:
    with serving(_Store(_Handler)) as listening:
        yield listening


def attach(store: _Store) -> Origin:
    url = "s3://bucket"
    options = parse_options(url, s3_options(store))
    stores = cloud.s3_stores(url, "bucket", options)
    origin = ObjectStoreOrigin(url, stores, "", sizes=Sizes(MIB, MIB))
    return RetryOrigin(origin)


@pytest.mark.parametrize(
    "pieces",
    [
        [DECLARATION, b" " * 1000, b"\n", RESULT],
        [b"\n", DECLARATION, RESULT],
        [DECLARATION, b" ", failure("InternalError")],
        [DECLARATION, b" "],
        [b" "],
        [b"<html><body>busy</body></html>"],
    ],
)
async def test_a_completion_that_was_made_counts_whatever_the_answer(
    store: _Store, pieces: list[bytes]
) -> None:
    store.completions = [(pieces, True), ([RESULT], True)]
    async with opened(attach(store)) as origin:
        info = await origin.put(
            "f", BytesPutSource(DATA), condition=None, attributes=Attributes(), deadline=soon()
        )
        assert info.version.size_bytes == len(DATA)
        assert store.object is not None and store.object[0] == DATA


@pytest.mark.parametrize("code", ["InternalError", "PreconditionFailed"])
async def test_a_completion_that_failed_behind_status_200_is_made_again(store: _Store, code: str) -> None:
    store.completions = [([DECLARATION, b" ", failure(code)], False), ([RESULT], True)]
    async with opened(attach(store)) as origin:
        await origin.put("f", BytesPutSource(DATA), condition=None, attributes=Attributes(), deadline=soon())
        assert store.completed == 2
        assert store.object is not None and store.object[0] == DATA
