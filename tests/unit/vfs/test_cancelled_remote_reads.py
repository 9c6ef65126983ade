"""Reads of many files of another host that nobody waits for any more end at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import xxhash

from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import block_pieces
from headrace.sdk.cache import cache_over
from headrace.testing.waiting import wait_for
from headrace.vfs.remote.cluster_client import STEP_BYTES
from headrace.vfs.remote.remote_vfs import RemoteVfs
from headrace.wire.api import SUMS_HEADER, Problem
from tests.unit.vfs.remote_node import remote_namespaces

pytestmark = pytest.mark.timeout(120)
LIMIT_S = 60.0
LARGE_BYTES = 1000 * STEP_BYTES
Start = Callable[[type[BaseHTTPRequestHandler]], RemoteVfs]
ThreadNames = Callable[[], list[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    with remote_namespaces() as open_one:
        yield open_one


class Node:
    """Answers as a node does. go_on: set when hanging requests may end."""

    def __init__(self) -> None:
        self.hanging = self.ranges = 0
        self.lock = threading.Lock()
        self.go_on = threading.Event()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client cuts requests off
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if "content" not in url.path:
                    return self.answer(200, json.dumps({"node": "", "replicas": 1, "members": []}).encode())
                path = parse_qs(url.query)["path"][0]
                if path == "/missing":
                    problem = Problem("", "", 404, "", "path.not_found", what=path)
                    return self.answer(404, msgspec.json.encode(problem))
                if path.startswith("/slow"):
                    with node.lock:
                        node.hanging += 1
                    node.go_on.wait(LIMIT_S)
                return self.send_range(LARGE_BYTES if path == "/large" else 5)

            def send_range(self, size: int) -> None:
                with node.lock:
                    node.ranges += 1
                first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
                start, end = int(first), min(size, int(last) + 1)
                data = bytes(end - start)
                sums = [xxhash.xxh3_64_hexdigest(piece) for piece in block_pieces(memoryview(data), start)]
                headers = {SUMS_HEADER: ",".join(sums), "content-range": f"bytes {start}-{end - 1}/{size}"}
                self.answer(206, data, headers | {"etag": '"one"'})

            def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        return Handler


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.go_on.set()


@pytest.fixture
def threads_of_reads() -> ThreadNames:
    """Return what names the threads of reads that began since: those of earlier tests end when they are collected."""
    earlier = {*threading.enumerate()}
    return lambda: [
        thread.name for thread in {*threading.enumerate()} - earlier if thread.name.startswith("headrace")
    ]


def interrupted(paths: list[str], is_due: Callable[[], bool]) -> Iterator[str]:
    """Yield paths of a caller whom Ctrl-C interrupts."""
    yield from paths
    wait_for(is_due, limit_s=LIMIT_S)
    raise KeyboardInterrupt


@pytest.mark.parametrize("ordered", [True, False])
def test_requests_that_a_node_does_not_answer_end(
    start: Start, node: Node, threads_of_reads: ThreadNames, *, ordered: bool
) -> None:
    """The end of a program waits for its threads, and the node for an origin."""
    vfs = start(node.handler())
    paths = [f"/slow/{number}" for number in range(100)]
    with cache_over(vfs) as cache, pytest.raises(KeyboardInterrupt):
        list(cache.read_many(interrupted(paths, lambda: node.hanging >= 4), ordered=ordered))
    assert not threads_of_reads()
    assert not node.go_on.is_set() and node.ranges == 0
    assert [result.data for result in cache_over(vfs).read_many(["/fast"])] == [bytes(5)]
    assert not vfs.nodes.home.bad, "a request that was cut off says nothing about its node"


def test_a_large_file_that_nobody_waits_for_is_read_no_further(
    start: Start, node: Node, threads_of_reads: ThreadNames
) -> None:
    vfs = start(node.handler())
    with cache_over(vfs) as cache, pytest.raises(KeyboardInterrupt):
        list(cache.read_many(interrupted(["/large"], lambda: node.ranges > 3)))
    assert node.ranges < 500
    vfs.close()
    wait_for(lambda: not threads_of_reads(), limit_s=LIMIT_S)


def test_an_error_that_is_raised_ends_the_others(start: Start, node: Node) -> None:
    with cache_over(start(node.handler())) as cache, pytest.raises(PathNotFoundError):
        list(cache.read_many(["/missing", *(f"/slow/{number}" for number in range(100))]))
    assert not node.go_on.is_set()


def test_one_call_that_ends_leaves_another_alone(start: Start, node: Node) -> None:
    vfs = start(node.handler())
    with cache_over(vfs) as cache:
        others = cache.read_many([f"/slow/{number}" for number in range(8)], on_error="return")
        read: list[HeadraceError | None] = []
        thread = threading.Thread(target=lambda: read.extend(result.error for result in others))
        thread.start()
        wait_for(lambda: node.hanging == 8, limit_s=LIMIT_S)
        with pytest.raises(PathNotFoundError):
            list(cache.read_many(["/missing", *(f"/slow/{number}" for number in range(16))]))
        node.go_on.set()
        thread.join(LIMIT_S)
    assert read == [None] * 8
