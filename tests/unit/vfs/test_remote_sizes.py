"""A node of another host names sizes that its file does not have: that is an error, and takes no memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler

import pytest
import xxhash

from headrace.base.errors import ProtocolError
from headrace.vfs.remote import content
from headrace.vfs.remote.cluster_client import STEP_BYTES
from headrace.vfs.remote.remote_vfs import RemoteVfs
from tests.unit.vfs.remote_node import remote_namespaces

DATA = bytes(range(256)) * (2 * STEP_BYTES // 256) + b"end"
MIB = 1 << 20
OpenVfs = Callable[..., RemoteVfs]


class Handler(BaseHTTPRequestHandler):
    """Serves DATA, and names `size` as its size. beyond: the status of all answers is 416."""

    protocol_version = "HTTP/1.1"
    size: str
    beyond: bool

    def do_GET(self) -> None:
        if self.path.startswith("/v1/cluster"):
            self._answer(200, json.dumps({"node": "", "replicas": 1, "members": []}).encode(), "")
            return
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(DATA))
        if self.beyond or start >= len(DATA):
            self._answer(416, b"", f"bytes */{self.size}")
        else:
            self._answer(206, DATA[start:end], f"bytes {start}-{end - 1}/{self.size}")

    def _answer(self, status: int, body: bytes, span: str) -> None:
        pieces = (body[start : start + MIB] for start in range(0, len(body), MIB))
        self.send_response(status)
        self.send_header("Content-Range", span)
        self.send_header("ETag", '"v1"')
        self.send_header("headrace-checksums", ",".join(map(xxhash.xxh3_64_hexdigest, pieces)))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def open_vfs() -> Iterator[OpenVfs]:
    """Call with the size that the node names."""
    with remote_namespaces() as open_namespace:

        def open_one(size: object, *, beyond: bool = False) -> RemoteVfs:
            return open_namespace(type("Sized", (Handler,), {"size": str(size), "beyond": beyond}))

        yield open_one


def test_a_true_size_is_read_in_parts(open_vfs: OpenVfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "FIRST_PART_BYTES", STEP_BYTES)
    vfs = open_vfs(len(DATA))
    assert vfs.read(b"/f", 0, None) == DATA
    assert vfs.read(b"/f", 2 * MIB, 1 << 62) == DATA[2 * MIB :]
    assert vfs.read(b"/f", len(DATA), None) == b""


@pytest.mark.parametrize("end", [None, 1 << 62])
@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1])
def test_a_vast_size_is_an_error_without_memory_for_it(
    open_vfs: OpenVfs, size: int, end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "FIRST_PART_BYTES", STEP_BYTES)
    with pytest.raises(ProtocolError):
        open_vfs(size).read(b"/f", 0, end)


@pytest.mark.parametrize("size", [1 << 63, "9" * 5000, "-1", "+9999999999", "1_000_000_000", "²" * 10, ""])
def test_a_size_that_no_file_has_is_an_error(open_vfs: OpenVfs, size: object) -> None:
    for beyond in (False, True):
        with pytest.raises(ProtocolError, match="valid content-range"):
            open_vfs(size, beyond=beyond).read(b"/f", 0, None)


def test_a_file_that_ends_before_its_end_is_an_error(open_vfs: OpenVfs) -> None:
    with pytest.raises(ProtocolError, match="ends before byte 0"):
        open_vfs(1 << 40, beyond=True).read(b"/f", 0, None)
