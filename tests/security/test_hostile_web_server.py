"""A web server that is attached as an origin (docs/security/threat-model.md, O): names that lead elsewhere, sizes that
lie, and bodies without an end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import ClassVar

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, NotSupportedError, OriginUnavailableError
from headrace.base.model import Version
from headrace.origin import cloud, web
from headrace.origin.options import parse_options
from headrace.origin.origin import Origin
from headrace.origin.web import WebOrigin, index_names
from tests.conformance.origin.origin_suite import listing_of, opened, soon
from tests.security.endless_bodies import PIECE, SENT_MAX, EndlessHandler
from tests.unit.origin.stand_in_store import StandInStore, endpoint_of, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

VERSION = Version(8, 10**9, '"v"')
DATED = {"ETag": VERSION.token, "Last-Modified": "Thu, 01 Jan 1970 00:00:01 GMT"}


class _Hostile(EndlessHandler):
    """Answers a range with its first bytes and many more."""

    page: ClassVar[str] = ""

    def do_HEAD(self) -> None:
        self._head(200, {**DATED, "Content-Length": "8"})

    def do_GET(self) -> None:
        if not self.headers["Range"]:
            body = b"" if self.path != "/" else self.page.encode("utf-8", "surrogateescape")
            self._head(200 if body else 404, {"Content-Type": "text/html", "Content-Length": str(len(body))})
            self.wfile.write(body)
            return
        self._head(206, {**DATED, "Content-Range": "bytes 0-7/8", "Content-Length": str(self.claimed)})
        if self.send_body():
            return
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def attach(store: StandInStore) -> Origin:
    url = endpoint_of(store)
    return WebOrigin(url, cloud.web_stores(url, url, parse_options(url, {})), "")


async def read(origin: Origin) -> bytes:
    arrived = await origin.read_range("f", 0, 8, version=VERSION, deadline=soon())
    return bytes(arrived.body)


async def test_a_body_without_an_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range had 8 bytes, and the node kept all that came until the deadline: 3 GiB in 8 s."""
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(OriginUnavailableError):
                await read(origin)
            assert _Hostile.pieces_sent < SENT_MAX // 2
            monkeypatch.setattr(_Hostile, "claimed", 8)
            assert await read(origin) == PIECE[:8]


@pytest.mark.parametrize("claimed", [9, 4096])
async def test_a_body_that_is_longer_than_its_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    monkeypatch.setattr(_Hostile, "claimed", claimed)
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(OriginUnavailableError):
                await read(origin)


async def test_an_index_that_is_longer_than_it_says_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Content-Length said 100 bytes, and the node kept all chunks that came until the deadline."""
    sent = [0]

    def answer(handler: _Hostile) -> None:
        handler._head(
            200, {"Content-Type": "text/html", "Content-Length": "100", "Transfer-Encoding": "chunked"}
        )
        with contextlib.suppress(OSError):
            for _ in range(SENT_MAX):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(PIECE), PIECE))
                sent[0] += 1
        handler.close_connection = True

    monkeypatch.setattr(_Hostile, "do_GET", answer)
    monkeypatch.setattr(web, "INDEX_BYTES_MAX", 1 << 20)
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(NotSupportedError):
                await listing_of(origin, "")
    assert sent[0] < SENT_MAX // 2


async def test_an_empty_range_needs_no_body() -> None:
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(HeadraceError):
                await origin.read_range("f", 0, 0, version=VERSION, deadline=Deadline.after(5))


@pytest.mark.expected_warnings(
    "index links to a file that the server refuses", "index links to a missing file"
)
async def test_names_of_an_index_stay_in_their_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    links = [
        "..",
        "../",
        "../up",
        "/etc/passwd",
        "a//b",
        "%2e%2e",
        "%2e%2e/",
        "..%2fup",
        "a%2fb",
        "//host/x",
        ".",
    ]
    links += [
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "javascript:x",
        "?C=N",
        "#x",
        "%00",
        "a%00b",
    ]
    links += ["n" * 65536, "%ff", "plain", "dir/", "line%0abreak"]
    page = "".join(f'<a href="{link}">' for link in links)
    monkeypatch.setattr(_Hostile, "page", page)
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            listing = await listing_of(origin, "")
    names = [*listing.objects, *listing.directories]
    assert {"plain", "dir"} <= set(names)
    assert [
        name for name in names if name in (".", "..") or "/" in name or "\0" in name or len(name) > 255
    ] == []


@pytest.mark.expected_warnings("index links to")
async def test_an_index_of_missing_files_does_not_flood_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each was a line, which took the place of all others in the log."""
    monkeypatch.setattr(_Hostile, "page", "".join(f'<a href="f{n}">' for n in range(600)))
    monkeypatch.setattr(_Hostile, "do_HEAD", lambda handler: handler._head(404, {"Content-Length": "0"}))
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            assert not (await listing_of(origin, "")).objects
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == web.LINES_A_LISTING + 1
    assert lines[-1] == "index links to files that are left out count=600"


async def test_a_large_index_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest page takes ten seconds, and all other requests of the node waited for it."""
    threads: list[threading.Thread] = []

    def names_of(page: str, path: str) -> list[str]:
        threads.append(threading.current_thread())
        return index_names(page, path)

    monkeypatch.setattr(web, "index_names", names_of)
    monkeypatch.setattr(_Hostile, "page", "".join(f'<a href="d{n}/">' for n in range(5000)))
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            assert len((await listing_of(origin, "")).directories) == 5000
    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize("page", ["<" * (1 << 20), "</" * (1 << 20), "<p" * (1 << 20)])
def test_a_page_of_tags_is_no_index(page: str) -> None:
    """A page of 64 MiB took 80 s of the processor."""
    begun_s = time.process_time()
    with pytest.raises(ValueError, match="more tags than text"):
        index_names(page, "/")
    assert time.process_time() - begun_s < 1
    table = '<tr><td><a href="f">f</a></td></tr>\n' * 10_000
    assert index_names(table, "/") == ["f"]


async def test_a_path_that_fits_no_url_is_an_error_of_the_origin() -> None:
    """A server may have directories without end; obstore panics at a URL of 64 KiB."""
    with serving(StandInStore(_Hostile)) as store:
        async with opened(attach(store)) as origin:
            with pytest.raises(HeadraceError):
                await origin.head("/".join(["n" * 255] * 300), deadline=soon())
            await origin.head("f", deadline=soon())
