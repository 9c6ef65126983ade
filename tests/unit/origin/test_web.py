"""Index pages of web servers: single files that the server refuses, and pages that are no index."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from headrace.base.errors import OriginDeniedError, OriginUnavailableError
from headrace.origin import cloud
from headrace.origin.options import parse_options
from headrace.origin.origin import Origin
from headrace.origin.web import WebOrigin
from tests.conformance.origin.origin_suite import listing_of, opened

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

DATED = {"Last-Modified": "Thu, 01 Jan 1970 00:00:01 GMT"}


def page(*names: str) -> bytes:
    return "".join(f'<a href="{name}">{name}</a>' for name in names).encode()


class _Web(http.server.ThreadingHTTPServer):
    """A web server. pages: the index of each path. statuses: of paths that are refused. for_all: the page for every
    path that has none; None: status 404."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.pages: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.for_all: bytes | None = None
        self.for_all_headers: dict[str, str] = {}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Web

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        if self.path in self.server.statuses:
            self._answer(self.server.statuses[self.path], b"")
        elif self.path in self.server.pages:
            self._answer(200, self.server.pages[self.path])
        elif self.path in self.server.files:
            self._answer(200, self.server.files[self.path], DATED)
        elif self.server.for_all is not None:
            self._answer(200, self.server.for_all, self.server.for_all_headers)
        else:
            self._answer(404, b"<html>missing</html>")

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def web() -> Iterator[_Web]:
    with _Web(("127.0.0.1", 0), _Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield listening
        listening.shutdown()
        thread.join()


def attach(web: _Web) -> Origin:
    url = f"http://127.0.0.1:{web.server_address[1]}"
    return WebOrigin(url, cloud.web_stores(url, url, parse_options(url, {})), "")


@pytest.mark.expected_warnings("a file that the server refuses")
@pytest.mark.parametrize("status", [400, 403, 410, 451])
async def test_a_file_that_is_refused_hides_no_other(web: _Web, status: int) -> None:
    web.pages["/"] = page("a", "refused", "z", "d/")
    web.files = {"/a": b"1", "/z": b"22"}
    web.statuses["/refused"] = status
    async with opened(attach(web)) as origin:
        listing = await listing_of(origin, "")
    assert set(listing.objects) == {"a", "z"} and listing.directories == {"d"}


@pytest.mark.parametrize(("status", "expected"), [(401, OriginDeniedError), (503, OriginUnavailableError)])
async def test_credentials_and_outages_are_of_all_files(
    web: _Web, status: int, expected: type[Exception]
) -> None:
    web.pages["/"] = page("a", "refused")
    web.files["/a"] = b"1"
    web.statuses["/refused"] = status
    async with opened(attach(web)) as origin:
        with pytest.raises(expected):
            await listing_of(origin, "")


@pytest.mark.expected_warnings("a file that the server refuses")
async def test_a_server_that_refuses_all_files_is_no_empty_directory(web: _Web) -> None:
    web.pages["/"] = page("a", "b")
    web.statuses = {"/a": 403, "/b": 403}
    async with opened(attach(web)) as origin:
        with pytest.raises(OriginDeniedError):
            await listing_of(origin, "")


@pytest.mark.parametrize("headers", [{}, DATED])
@pytest.mark.parametrize("names", [(), ("login",), ("terms/",), ("/",)])
async def test_a_page_for_every_name_is_no_index(
    web: _Web, names: tuple[str, ...], headers: dict[str, str]
) -> None:
    web.for_all, web.for_all_headers = page(*names), headers
    async with opened(attach(web)) as origin:
        for key in ("", "d"):
            with pytest.raises(OriginUnavailableError):
                await listing_of(origin, key)


async def test_a_page_with_status_200_for_missing_names_spoils_no_index(web: _Web) -> None:
    web.for_all, web.for_all_headers = page("home"), DATED
    web.pages = {"/": page("a", "d/"), "/d": page("b")}
    web.files = {"/a": b"1", "/d/b": b"22"}
    async with opened(attach(web)) as origin:
        listing = await listing_of(origin, "")
        assert set(listing.objects) == {"a"} and listing.directories == {"d"}
        assert set((await listing_of(origin, "d")).objects) == {"d/b"}


async def test_an_empty_index_is_an_empty_directory(web: _Web) -> None:
    web.pages["/"] = page()
    async with opened(attach(web)) as origin:
        listing = await listing_of(origin, "")
        assert not listing.objects and not listing.directories
