"""Listings that no store made, or that it broke off, are errors: no name is missing without a word."""

from __future__ import annotations

import bisect
import urllib.parse
from collections.abc import Iterator
from xml.sax.saxutils import escape

import pytest

from headrace.base.errors import OriginError, OriginUnavailableError
from headrace.origin import listing_checks
from headrace.origin.object_store import PAGE, WASTE_MAX
from headrace.origin.origin import Origin
from tests.conformance.origin.origin_suite import listing_of, opened
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, attach_gcs, attach_s3, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

PAGE_OF_A_PORTAL = b"<html><body>Please sign in.</body></html>"


class _Store(StandInStore):
    """A bucket. keys: in the order of their bytes. has_tokens: whether it continues listings. heeds_start: whether a
    listing begins behind start-after. is_portal: whether a page with status 200 answers each request."""

    has_tokens, heeds_start, is_portal = True, True, False

    def __init__(self, handler: type[StandInHandler]) -> None:
        super().__init__(handler)
        self.keys: list[str] = []
        self.listings, self.heads = 0, 0


class _Handler(StandInHandler):
    server: _Store

    def do_HEAD(self) -> None:
        self.server.heads += 1
        if self.server.is_portal:
            self._answer(200, PAGE_OF_A_PORTAL, "text/html")
            return
        key = urllib.parse.unquote(self.path.partition("?")[0].removeprefix("/bucket/"))
        self._answer(200 if key in self.server.keys else 404, b"", "text/plain")

    def do_GET(self) -> None:
        if self.server.is_portal:
            self._answer(200, PAGE_OF_A_PORTAL, "text/html")
            return
        self.server.listings += 1
        query = dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))
        keys = [key for key in self.server.keys if key.startswith(query.get("prefix", ""))]
        start = query.get("continuation-token", "") if self.server.has_tokens else ""
        if self.server.heeds_start:
            start = max(start, query.get("start-after", ""))
        keys = keys[bisect.bisect(keys, start) :]
        self._list(keys, query.get("prefix", ""), query.get("delimiter", ""))

    def _list(self, keys: list[str], prefix: str, delimiter: str) -> None:
        """Answer with a page of keys. A delimiter folds those below a directory, which this page ends within."""
        page, names = keys[:PAGE], []
        folded: dict[str, None] = {}
        for key in page:
            below = key[len(prefix) :].partition("/")
            if delimiter and below[1]:
                folded[f"{prefix}{below[0]}/"] = None
            else:
                names.append(key)
        text = f"<ListBucketResult><IsTruncated>{str(len(keys) > PAGE).lower()}</IsTruncated>"
        if len(keys) > PAGE and self.server.has_tokens:
            text += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        for name in names:
            size = 0 if name.endswith(("/", "empty")) else 5
            text += (
                f"<Contents><Key>{escape(name)}</Key><LastModified>1970-01-01T00:00:01.000Z</LastModified>"
            )
            text += f'<ETag>"0"</ETag><Size>{size}</Size></Contents>'
        text += "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in folded)
        self._answer(200, f"{text}</ListBucketResult>".encode(), "application/xml")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header(
            "Content-Length", "0" if self.command == "HEAD" and status == 200 else str(len(body))
        )
        if status == 200 and not self.server.is_portal:
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Thu, 01 Jan 1970 00:00:01 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def store() -> Iterator[_Store]:
    with serving(_Store(_Handler)) as listening:
        yield listening


@pytest.fixture(params=["s3", "gs"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def attach(store: _Store, scheme: str = "s3") -> Origin:
    return attach_gcs(store) if scheme == "gs" else attach_s3(store)


def files(count: int, directory: str = "") -> list[str]:
    return [f"{directory}f{number:05d}" for number in range(count)]


async def test_a_page_of_a_portal_is_no_empty_listing(store: _Store, scheme: str) -> None:
    store.is_portal = True
    async with opened(attach(store, scheme)) as origin:
        for key in ("", "d", "d/e"):
            with pytest.raises(OriginUnavailableError):
                await listing_of(origin, key)
        store.is_portal = False
        store.keys = ["d/f", "f"]
        assert set((await listing_of(origin, "")).objects) == {"f"}


async def test_an_empty_listing_of_a_store_is_empty(store: _Store, scheme: str) -> None:
    async with opened(attach(store, scheme)) as origin:
        for key in ("", "d"):
            listing = await listing_of(origin, key)
            assert not listing.objects and not listing.directories
        assert 1 <= store.heads <= 2  # one, unless this host is very busy


async def test_names_show_that_a_store_answers(store: _Store) -> None:
    store.keys = ["f"]
    async with opened(attach(store)) as origin:
        await listing_of(origin, "")
        assert store.heads == 0


async def test_what_a_store_answered_before_shows_nothing(
    store: _Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_checks, "PROVED_FOR_S", 0.0)
    store.keys = ["f"]
    async with opened(attach(store)) as origin:
        await listing_of(origin, "")
        store.is_portal = True
        with pytest.raises(OriginUnavailableError):
            await listing_of(origin, "d")


@pytest.mark.parametrize("count", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 7])
async def test_a_store_that_continues_its_listings_is_believed(
    store: _Store, scheme: str, count: int
) -> None:
    store.keys = files(count)
    async with opened(attach(store, scheme)) as origin:
        for _ in range(2):
            assert list((await listing_of(origin, "")).objects) == store.keys
        pages = -(-count // PAGE)
        assert store.listings == 2 * pages + (2 if count in (PAGE - 1, PAGE) else 0)


@pytest.mark.parametrize("heeds_start", [False, True])
@pytest.mark.parametrize("directory", ["", "d/"])
@pytest.mark.parametrize("deep", [0, WASTE_MAX + 1, 3 * PAGE])
async def test_a_store_that_breaks_off_its_listings_is_refused(
    store: _Store, directory: str, deep: int, heeds_start: bool
) -> None:
    """Stores without ListObjectsV2 do so: they answer as for its first version."""
    store.has_tokens, store.heeds_start = False, heeds_start
    store.keys = files(deep, f"{directory}below/") + files(PAGE + 1, directory)
    expected = OriginUnavailableError if heeds_start else OriginError
    async with opened(attach(store)) as origin:
        with pytest.raises(expected, match=r"br(eaks|oke) off"):
            await listing_of(origin, directory.rstrip("/"))
        store.keys = files(PAGE - 2, directory)
        assert list((await listing_of(origin, directory.rstrip("/"))).objects) == store.keys


@pytest.mark.parametrize("last", ["zz/", "zz-empty", "zz"])
async def test_a_full_page_may_end_with_any_key(store: _Store, last: str) -> None:
    store.keys = [*files(PAGE - 1), last]
    async with opened(attach(store)) as origin:
        listing = await listing_of(origin, "")
        assert len(listing.objects) + len(listing.directories) == PAGE


@pytest.mark.parametrize("deep", [PAGE, 3 * PAGE])
async def test_a_walk_that_is_given_up_lists_all_names(store: _Store, deep: int) -> None:
    store.keys = [*files(deep, "below/"), "f"]
    async with opened(attach(store)) as origin:
        for _ in range(2):
            listing = await listing_of(origin, "")
            assert set(listing.objects) == {"f"} and listing.directories == {"below"}
