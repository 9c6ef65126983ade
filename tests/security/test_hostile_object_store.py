"""A server in the place of an object store lies in its listings, and about the length of its answers
(docs/security/threat-model.md, O)."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable
from typing import ClassVar

import pytest

from headrace.base.errors import HeadraceError, NotSupportedError, OriginError, OriginUnavailableError
from headrace.base.model import Version
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.wire.peer_messages import INT64_MAX
from tests.conformance.origin.origin_suite import CollectedListing, listing_of, opened, soon
from tests.security.endless_bodies import PIECE, SENT_MAX, EndlessHandler
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, attach_gcs, attach_s3, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

Row = tuple[str, int, str]
"""Key, size and ETag, as they are in the XML."""
HONEST = ("a", 3, "&quot;e&quot;")


class _Listing(StandInHandler):
    """Answers a listing with `rows`, and has no object."""

    rows: ClassVar[list[Row]] = []
    declared: ClassVar[str] = ""
    ending: ClassVar[str] = ""

    def do_HEAD(self) -> None:
        self._answer(404, b"")

    def do_GET(self) -> None:
        is_listing = "list-type" in self.path
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2022-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{tag}</ETag><Size>{size}</Size></Contents>"
            for key, size, tag in self.rows
        )
        text = (
            f"{self.declared}<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{rows}{self.ending}"
            "</ListBucketResult>"
        )
        self._answer(200 if is_listing else 404, text.encode() if is_listing else b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def listed(monkeypatch: pytest.MonkeyPatch, *rows: Row) -> CollectedListing:
    monkeypatch.setattr(_Listing, "rows", [HONEST, *rows])
    with serving(StandInStore(_Listing)) as store:
        async with opened(attach_s3(store)) as origin:
            return await listing_of(origin, "")


async def test_no_size_is_larger_than_a_file_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes refused the whole directory of such a name from its owner."""
    listing = await listed(monkeypatch, ("large", (1 << 64) - 1, "&quot;l&quot;"), ("max", INT64_MAX, "m"))
    assert {key: version.size_bytes for key, version in listing.objects.items()} == {
        "a": 3,
        "large": INT64_MAX,
        "max": INT64_MAX,
    }


@pytest.mark.parametrize("size", [-1, 1 << 64, 10**400])
async def test_a_number_that_is_no_size_is_an_error_of_the_origin(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with pytest.raises(OriginError):
        await listed(monkeypatch, ("b", size, "t"))


@pytest.mark.parametrize("key", ["..", "../b", "a//b", "/", "n&#0;l", "b&#10;c", "&lt;!ENTITY", "%2e%2e"])
async def test_a_key_leads_nowhere_else(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    try:
        listing = await listed(monkeypatch, (key, 3, "t"))
    except (NotSupportedError, OriginError):
        return
    names = {*listing.objects, *listing.directories} - {"a"}
    assert [name for name in names if name in ("", ".", "..") or "/" in name] == []


async def test_an_empty_object_whose_key_fits_no_url_is_an_error_of_the_origin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its HEAD makes obstore panic, which was an error that nothing expected."""
    with pytest.raises(HeadraceError):
        await listed(monkeypatch, ("n" * 70_000, 0, "t"))


@pytest.mark.parametrize("token", ['"a\nb"', '"a\r\nRange: bytes=0-9"', '"\x00"', '"\u6587"'])
async def test_an_entity_tag_adds_no_header_to_a_request(token: str) -> None:
    with serving(StandInStore(_Listing)) as store:
        async with opened(attach_s3(store)) as origin:
            with pytest.raises(HeadraceError):
                await origin.read_range("a", 0, 3, version=Version(3, 0, token), deadline=soon())


READ = Version(8, 10**9, '"v"')
DATED = {"ETag": READ.token, "Last-Modified": "Thu, 01 Jan 1970 00:00:01 GMT", "Content-Range": "bytes 0-7/8"}


class _Long(EndlessHandler):
    """Answers a range of 8 bytes with `claimed` bytes, or with `packed` ones."""

    packed: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        self.send_response(206)
        encoding = {"Content-Encoding": "gzip"} if self.packed else {}
        length = {"Content-Length": str(len(self.packed) or self.claimed)}
        for name, value in {**DATED, **encoding, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.packed:
            self.wfile.write(self.packed)
            return
        if not self.send_body():
            self.close_connection = True


@pytest.mark.parametrize("attach", [attach_s3, attach_gcs])
async def test_a_body_without_an_end_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch, attach: Callable[[StandInStore], ObjectStoreOrigin]
) -> None:
    """The range had 8 bytes, and the node kept all that came until the deadline: a GiB a second."""
    with serving(StandInStore(_Long)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(OriginUnavailableError):
                await origin.read_range("a", 0, 8, version=READ, deadline=soon())
            assert _Long.pieces_sent < SENT_MAX // 2
            monkeypatch.setattr(_Long, "claimed", 8)
            for _ in range(3):
                arrived = await origin.read_range("a", 0, 8, version=READ, deadline=soon())
                assert bytes(arrived.body) == PIECE[:8]


@pytest.mark.parametrize("attach", [attach_s3, attach_gcs])
async def test_no_body_is_decompressed(
    monkeypatch: pytest.MonkeyPatch, attach: Callable[[StandInStore], ObjectStoreOrigin]
) -> None:
    """Bytes are those that the store has, and a small answer takes little memory."""
    packed = gzip.compress(bytes(1 << 20))
    monkeypatch.setattr(_Long, "packed", packed)
    with serving(StandInStore(_Long)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(OriginUnavailableError, match=f"received {len(packed)} of 8 bytes"):
                await origin.read_range("a", 0, 8, version=READ, deadline=soon())


ENTITIES = "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(9))


@pytest.mark.parametrize(
    "declared",
    [
        f'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">{ENTITIES}]>',
        '<!DOCTYPE x [<!ENTITY j SYSTEM "file:///etc/passwd">]>',
    ],
)
async def test_no_entity_of_a_listing_is_expanded(monkeypatch: pytest.MonkeyPatch, declared: str) -> None:
    monkeypatch.setattr(_Listing, "declared", declared)
    with pytest.raises(OriginError):
        await listed(monkeypatch, ("k&j;", 3, "t"))


@pytest.mark.parametrize("name", ["other", "Contents", "ListBucketResult", "CommonPrefixes"])
async def test_a_listing_of_nested_elements_ends_no_process(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(_Listing, "ending", f"<{name}>" * 500_000 + f"</{name}>" * 500_000)
    with contextlib.suppress(OriginError):
        await listed(monkeypatch)
