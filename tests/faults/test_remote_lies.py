"""A node that lies, breaks off or says nonsense to a host without a node: another one is asked, or it is an error;
never other bytes."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

import pytest
import xxhash

from headrace.base.errors import HeadraceError, ProtocolError, VersionChangedError
from headrace.http.node_connection import Address
from headrace.vfs.remote.cluster_client import STEP_BYTES, ClusterClient
from headrace.vfs.remote.remote_vfs import RemoteVfs

MIB = 1 << 20
DATA = random.Random("remote").randbytes(STEP_BYTES + 2 * MIB + 77)
Lie = Callable[["Handler", int, int], None]


class Handler(BaseHTTPRequestHandler):
    """Serves one file, /f. lie: what is done in place of the answer, or None for the truth."""

    protocol_version = "HTTP/1.1"
    lie: Lie | None = None

    def do_GET(self) -> None:
        if self.path.startswith("/v1/cluster"):
            self.say(200, json.dumps({"node": "", "replicas": 1, "members": []}).encode())
            return
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, len(DATA))
        if self.lie is not None:
            self.lie_to(start, end)
        else:
            self.part(start, end, DATA[start:end])

    def lie_to(self, start: int, end: int) -> None:
        lie = type(self).lie
        assert lie is not None
        lie(self, start, end)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.say(404, b"{}")

    def part(
        self,
        start: int,
        end: int,
        body: bytes,
        *,
        sums: str | None = None,
        length: int = 0,
        size: int = len(DATA),
    ) -> None:
        checksums = sums_of(DATA[start:end], start) if sums is None else sums
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("ETag", '"v1"')
        self.send_header("headrace-checksums", checksums)
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def say(self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def sums_of(data: bytes, start: int) -> str:
    cuts = sorted({0, *range((-start) % MIB, len(data), MIB), len(data)})
    return ",".join(xxhash.xxh3_64_hexdigest(data[a:b]) for a, b in itertools.pairwise(cuts))


def rotten(handler: Handler, start: int, end: int) -> None:
    handler.part(start, end, bytes([DATA[start] ^ 1]) + DATA[start + 1 : end])


def without_sums(handler: Handler, start: int, end: int) -> None:
    handler.part(start, end, DATA[start:end], sums="")


def elsewhere(handler: Handler, start: int, end: int) -> None:
    """True bytes, of another place."""
    position = start + 1 if end < len(DATA) else start - 1
    handler.part(position, position + end - start, DATA[position : position + end - start])


def cut_short(handler: Handler, start: int, end: int) -> None:
    handler.part(start, end, DATA[start : (start + end) // 2], length=end - start)
    handler.close_connection = True


def less(handler: Handler, start: int, end: int) -> None:
    """A shorter range than was asked for, whole in itself."""
    handler.part(start, (start + end + 1) // 2, DATA[start : (start + end + 1) // 2])


def nonsense(handler: Handler, start: int, end: int) -> None:
    handler.say(502, b"<html>Bad Gateway</html>")


def all_of_it(handler: Handler, start: int, end: int) -> None:
    """Answer with all of it, as a server that knows no ranges does."""
    handler.say(200, DATA)


def hung_up(handler: Handler, start: int, end: int) -> None:
    handler.close_connection = True
    handler.wfile.close()


def beyond_without_a_size(handler: Handler, start: int, end: int) -> None:
    handler.say(416, b"")


def shrunk(handler: Handler, start: int, end: int) -> None:
    """True bytes, of a file that ends in the middle of the range."""
    middle = (start + end) // 2
    handler.part(start, middle, DATA[start:middle], size=middle)


def ended(handler: Handler, start: int, end: int) -> None:
    handler.say(416, b"", {"Content-Range": "bytes */0"})


LIES = (rotten, without_sums, elsewhere, cut_short, less, nonsense, all_of_it, hung_up, beyond_without_a_size)


@pytest.fixture
def serve() -> Iterator[Callable[[Lie | None], Address]]:
    servers: list[ThreadingHTTPServer] = []

    def start(lie: Lie | None) -> Address:
        kind = type("One", (Handler,), {"lie": staticmethod(lie) if lie is not None else None})
        server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return Address(f"http://127.0.0.1:{server.server_port}", None)

    yield start
    for running in servers:
        running.shutdown()
        running.server_close()


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.expected_warnings("bytes do not match their checksum")
def test_a_lie_is_an_error_and_another_node_is_asked(
    serve: Callable[[Lie | None], Address], lie: Lie
) -> None:
    liar = RemoteVfs(ClusterClient([serve(lie)], None, patience_s=0))
    for start, end in ((0, len(DATA)), (5, 1000), (MIB - 3, MIB + 3)):
        with pytest.raises(HeadraceError):
            liar.read(b"/f", start, end)
    both = RemoteVfs(ClusterClient([serve(lie), serve(None)], None, patience_s=0))
    for _ in range(3):  # whichever is home
        for start, end in ((0, len(DATA)), (5, 1000), (MIB - 3, MIB + 3), (len(DATA) - 1, len(DATA) + 9)):
            assert both.read(b"/f", start, end) == DATA[start:end]
    liar.close()
    both.close()


@pytest.mark.parametrize("lie", [shrunk, ended], ids=lambda lie: lie.__name__)
def test_a_known_version_has_all_its_bytes(serve: Callable[[Lie | None], Address], lie: Lie) -> None:
    """A part that is missing would be read as zeros."""
    liar = ClusterClient([serve(lie)], None, patience_s=0)
    both = ClusterClient([serve(lie), serve(None)], None, patience_s=0)
    target = bytearray(995)
    with pytest.raises(ProtocolError):
        liar.fetch(b"/f", 5, 1000, etag='"v1"', into=memoryview(target))
    for _ in range(3):  # whichever is home
        both.fetch(b"/f", 5, 1000, etag='"v1"', into=memoryview(target))
        assert bytes(target) == DATA[5:1000]
    liar.close()
    both.close()


def test_a_file_that_changes_between_its_parts_is_read_anew_or_not_at_all(
    serve: Callable[[Lie | None], Address],
) -> None:
    asked: list[str] = []

    def changing(handler: Handler, start: int, end: int) -> None:
        asked.append(handler.headers["if-match"] or "")
        if asked[-1]:
            problem = {"type": "", "title": "", "status": 412, "detail": "", "code": "origin.version_changed"}
            return handler.say(412, json.dumps(problem).encode())
        return handler.part(start, end, DATA[start:end])

    paths = RemoteVfs(ClusterClient([serve(changing)], None, patience_s=0))
    with pytest.raises(VersionChangedError):
        paths.read(b"/f", 0, None)
    assert asked.count("") == 3  # from the beginning each time
    assert set(asked) == {"", '"v1"'}
    paths.close()
