"""Objects that GCS would decompress on the way are read as they are stored."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import Attributes
from headrace.origin.source import BytesPutSource
from tests.conformance.origin.origin_suite import listing_of, opened, soon
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, attach_gcs, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

STORED = gzip.compress(random.Random(5).randbytes(5000) + bytes(5000), mtime=0)
PLAIN = gzip.decompress(STORED)
ETAG = '"0123456789abcdef0123456789abcdef"'
GENERATION = "7"
LISTED = (
    "<ListBucketResult><Contents><Key>f</Key><LastModified>1970-01-01T00:00:01.000Z</LastModified>"
    f"<ETag>{ETAG}</ETag><Size>{len(STORED)}</Size></Contents></ListBucketResult>"
).encode()


class _Store(StandInStore):
    """A bucket with one object, f. may_serve_stored: whether Accept-Encoding is heeded. names_length: whether a whole
    object's answer has a Content-Length; GCS sends large ones without."""

    may_serve_stored, names_length = True, True


class _Handler(StandInHandler):
    """Answers as "Transcoding of gzip-compressed files" in the documentation of Cloud Storage says."""

    server: _Store

    def do_GET(self) -> None:
        if self.path.startswith("/bucket?"):
            is_accepted = "gzip" in self.headers.get("Accept-Encoding", "")
            headers = {"Content-Type": "application/xml"} | (
                {"Content-Encoding": "gzip"} if is_accepted else {}
            )
            self._answer(200, gzip.compress(LISTED) if is_accepted else LISTED, headers, has_length=True)
        elif self.path == "/bucket/missing":
            self._answer(404, b"", {}, has_length=True)
        elif self.server.may_serve_stored and "gzip" in self.headers.get("Accept-Encoding", ""):
            self._serve_stored()
        else:  # neither a range nor an ETag
            self._answer(200, PLAIN, {}, has_length=False)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_met = self.headers.get("x-goog-if-generation-match", GENERATION) == GENERATION
        headers = {"ETag": ETAG, "x-goog-generation": GENERATION}
        self._answer(200 if is_met else 412, b"", headers, has_length=True)

    def do_DELETE(self) -> None:
        self._answer(200, b"", {}, has_length=True)

    do_HEAD = do_GET

    def _serve_stored(self) -> None:
        headers = {"ETag": ETAG, "x-goog-generation": GENERATION, "Content-Encoding": "gzip"}
        unit, _, limits = self.headers.get("Range", "").partition("=")
        if unit != "bytes":
            self._answer(200, STORED, headers, has_length=self.server.names_length)
            return
        first, last = (int(digits) for digits in limits.split("-"))
        headers["Content-Range"] = f"bytes {first}-{last}/{len(STORED)}"
        self._answer(206, STORED[first : last + 1], headers, has_length=True)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, has_length: bool) -> None:
        self.send_response(status)
        self.send_header("Last-Modified", formatdate(1, usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        if has_length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if has_length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))


@pytest.fixture
def store() -> Iterator[_Store]:
    with serving(_Store(_Handler)) as listening:
        yield listening


@pytest.mark.parametrize("names_length", [True, False])
async def test_a_compressed_object_is_read_as_it_is_stored(store: _Store, names_length: bool) -> None:
    store.names_length = names_length
    async with opened(attach_gcs(store)) as origin:
        info = await origin.head("f", deadline=soon())
        assert (await listing_of(origin, "")).objects == {"f": info.version}
        for start, end in ((0, len(STORED)), (0, 1), (1000, 3000), (len(STORED) - 1, len(STORED))):
            arrived = await origin.read_range("f", start, end, version=info.version, deadline=soon())
            assert bytes(arrived.body) == STORED[start:end]
        assert arrived.extras is not None
        assert arrived.extras.headers["Content-Encoding"] == "gzip"


async def test_a_missing_object_is_missing(store: _Store) -> None:
    """A server that compresses its listings would hide whether the bucket exists."""
    async with opened(attach_gcs(store)) as origin:
        with pytest.raises(PathNotFoundError):
            await origin.head("missing", deadline=soon())


async def test_a_compressed_object_without_a_length_can_be_replaced(store: _Store) -> None:
    store.names_length = False
    async with opened(attach_gcs(store)) as origin:
        version = (await origin.head("f", deadline=soon())).version
        put = origin.put(
            "f", BytesPutSource(b"new"), condition=version, attributes=Attributes(), deadline=soon()
        )
        assert (await put).version.size_bytes == 3


async def test_a_decompressed_answer_is_refused(store: _Store) -> None:
    """A proxy may drop Accept-Encoding."""
    async with opened(attach_gcs(store)) as origin:
        version = (await origin.head("f", deadline=soon())).version
        store.may_serve_stored = False
        for start, end in ((0, len(STORED)), (0, 1), (1000, 3000)):
            with pytest.raises(HeadraceError):
                await origin.read_range("f", start, end, version=version, deadline=soon())
        with pytest.raises(HeadraceError):
            await origin.head("f", deadline=soon())
