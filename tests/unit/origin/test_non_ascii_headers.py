"""Python's own client in obstore's place: the same errors, and headers as they were meant."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.request import Request

import pytest

from headrace.base.errors import HeadraceError, OriginDeniedError, OriginUnavailableError, VersionChangedError
from headrace.base.model import Arrived, ObjectMetadata, Version
from headrace.origin.non_ascii_headers import _read

VERSION = Version(10, 0, '"tag"')


class Store(BaseHTTPRequestHandler):
    status: ClassVar[int] = 206
    body: ClassVar[bytes] = b"2345"
    etag: ClassVar[str] = '"tag"'

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Range", "bytes 2-5/10")
        self.send_header("ETag", self.etag)
        self.send_header("X-Amz-Meta-Colour", "grün".encode().decode("latin-1"))
        self.send_header("content-type", "text/x")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[tuple[type[Store], str]]:
    class Own(Store):
        pass

    with HTTPServer(("127.0.0.1", 0), Own) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Own, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def read(url: str) -> Arrived:
    return _read(Request(url), "s3://b/k", 2, 6, VERSION)


def test_bytes_come_with_what_was_meant(store: tuple[type[Store], str]) -> None:
    arrived = read(store[1])
    assert (arrived.body, arrived.extras) == (
        b"2345",
        ObjectMetadata({"colour": "grün"}, {"Content-Type": "text/x"}, None),
    )


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"status": 412}, VersionChangedError),
        ({"status": 404}, VersionChangedError),
        ({"status": 200, "etag": '"other"'}, VersionChangedError),
        ({"etag": '"other"'}, VersionChangedError),
        ({"status": 403}, OriginDeniedError),
        ({"status": 503}, OriginUnavailableError),
        ({"body": b"23"}, OriginUnavailableError),
    ],
)
def test_errors_are_those_of_any_read(
    store: tuple[type[Store], str], settings: dict[str, object], kind: type[HeadraceError]
) -> None:
    for name, value in settings.items():
        setattr(store[0], name, value)
    with pytest.raises(kind) as raised:
        read(store[1])
    assert store[1] not in str(raised.value)


def test_nobody_there() -> None:
    with pytest.raises(OriginUnavailableError):
        read("http://127.0.0.1:1/")
