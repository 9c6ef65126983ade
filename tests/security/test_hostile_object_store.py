"""A server in the place of an object store lies in its listings (docs/security/threat-model.md, O)."""

from __future__ import annotations

from typing import ClassVar

import pytest

from headrace.base.errors import HeadraceError, NotSupportedError, OriginError
from headrace.base.model import Version
from headrace.wire.peer_messages import INT64_MAX
from tests.conformance.origin.origin_suite import CollectedListing, listing_of, opened, soon
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, attach_s3, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

Row = tuple[str, int, str]
"""Key, size and ETag, as they are in the XML."""
HONEST = ("a", 3, "&quot;e&quot;")


class _Listing(StandInHandler):
    """Answers a listing with `rows`, and has no object."""

    rows: ClassVar[list[Row]] = []

    def do_HEAD(self) -> None:
        self._answer(404, b"")

    def do_GET(self) -> None:
        is_listing = "list-type" in self.path
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2022-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{tag}</ETag><Size>{size}</Size></Contents>"
            for key, size, tag in self.rows
        )
        text = f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
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
