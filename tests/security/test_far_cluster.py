"""A far cluster, or somebody in its place, sends these to a cluster that has it as its origin."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import xxhash

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
    UsageError,
    VersionChangedError,
)
from headrace.base.model import Version
from headrace.events.changes import ReportedChanges
from headrace.origin.far_cluster import FarClusterOrigin, build_far_cluster
from headrace.origin.far_trace import FarTrace
from headrace.origin.options import parse_options
from headrace.receivers import far_changes
from headrace.receivers.far_changes import FarChanges
from headrace.testing.waiting import until

pytestmark = pytest.mark.timeout(60)

DATA = random.Random("far").randbytes(3_000_000)
VERSION = Version(len(DATA), 5, '"v1"')
MIB = 1 << 20
Answer = Callable[["FarHandler"], None]


class FarHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Answer

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):
            type(self).answer(self)

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int = -1) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length < 0 else length))
        self.end_headers()
        self.wfile.write(body)

    def send_json(self, value: object, status: int = 200) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


@contextlib.contextmanager
def far(answer: Answer) -> Iterator[str]:
    """Serve on loopback. Yields HOST:PORT."""
    kind = type("Handler", (FarHandler,), {"answer": staticmethod(answer)})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.asynccontextmanager
async def origin_of(*answers: Answer, path: str = "", token: str = "") -> AsyncIterator[FarClusterOrigin]:
    with contextlib.ExitStack() as stack:
        nodes = ",".join(stack.enter_context(far(answer)) for answer in answers)
        url = f"headrace://{nodes}{path}"
        origin = build_far_cluster(url, parse_options(url, {"allow_http": "true", "token": token}))
        try:
            yield origin
        finally:
            await origin.close()


def soon(seconds: float = 20.0) -> Deadline:
    return Deadline.after(seconds)


def sums_of(data: bytes) -> str:
    return ",".join(xxhash.xxh3_64_hexdigest(data[start : start + MIB]) for start in range(0, len(data), MIB))


def row(path: str, **fields: Any) -> dict[str, Any]:
    return {"path": path, "kind": "file", "size_bytes": 5, "mtime_ns": 1, "version": '"v"', **fields}


def entries(*rows: dict[str, Any], next: str | None = None) -> Answer:
    return lambda handler: handler.send_json({"entries": rows, "next": next})


async def names_of(
    origin: FarClusterOrigin, key: str = "", *, limit_s: float = 20.0
) -> tuple[set[str], set[str]]:
    objects: set[str] = set()
    directories: set[str] = set()
    async for page in origin.list_directory(key, deadline=soon(limit_s)):
        objects |= {info.key for info in page.objects}
        directories |= set(page.directories)
    return objects, directories


@pytest.mark.parametrize(
    "path",
    ["/..", "/.", "/", "", "x", "/a/b", "/../x", "/d/../x", "/a\0b", "/" + "n" * 256, "//x", "/d/"],
)
async def test_a_name_that_leads_elsewhere_is_not_listed(path: str) -> None:
    async with origin_of(entries(row(path), row(path, kind="directory"), row("/good"))) as origin:
        assert await names_of(origin) == ({"good"}, set())


async def test_names_of_another_directory_are_not_listed() -> None:
    async with origin_of(entries(row("/top/d/in"), row("/top/out"), row("/d/out")), path="/top") as origin:
        assert await names_of(origin, "d") == ({"d/in"}, set())


@pytest.mark.parametrize(
    "fields",
    [
        {"size_bytes": -1},
        {"size_bytes": 1 << 63},
        {"mtime_ns": -(1 << 63) - 1},
        {"mtime_ns": 1 << 63},
        {"version": "a\r\nX-Injected: 1"},
        {"version": '"' + "v" * 5000 + '"'},
        {"version": '"a b"'},
        {"version": ""},
        {"version": "\u20ac"},
        {"kind": "link"},
        {"kind": "other"},
    ],
)
async def test_a_file_without_a_usable_version_is_not_listed(fields: dict[str, Any]) -> None:
    async with origin_of(entries(row("/bad", **fields), row("/good"))) as origin:
        assert await names_of(origin) == ({"good"}, set())


async def test_a_version_never_looks_like_one_of_this_cluster() -> None:
    """A token of an unpersisted file makes a node query the writer that it names."""
    async with origin_of(entries(row("/f", version="written-by/node-1/5-6"))) as origin:
        async for page in origin.list_directory("", deadline=soon()):
            assert [info.version.token for info in page.objects] == ['"written-by/node-1/5-6"']


@pytest.mark.parametrize("next", ["", "a", "b", "b\ud800"])
async def test_a_listing_without_end_ends(next: str) -> None:
    async with origin_of(entries(row("/b"), next=next)) as origin:
        with pytest.raises(OriginError, match="without end"):
            await names_of(origin)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"null",
        b'{"entries": 5}',
        b'{"entries": [{"path": 1}], "next": null}',
        b"\xff",
    ],
)
async def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    async with origin_of(lambda handler: handler.send(200, body)) as origin:
        with pytest.raises(OriginError):
            await names_of(origin)
        with pytest.raises(OriginError):
            await origin.head("f", deadline=soon())


def _endless(handler: FarHandler, status: int) -> None:
    handler.send_response(status)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for _ in range(4096):
        handler.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_an_answer_without_end_is_cut(status: int) -> None:
    async with origin_of(lambda handler: _endless(handler, status)) as origin:
        begun_s = time.monotonic()
        with pytest.raises(OriginError):
            await names_of(origin)
        assert time.monotonic() - begun_s < 10


def _part(data: bytes = DATA, **changes: str) -> Answer:
    headers = {
        "Content-Range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}",
        "ETag": '"v1"',
        "headrace-checksums": sums_of(DATA),
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return lambda handler: handler.send(206, data, headers)


async def _read(origin: FarClusterOrigin) -> bytes:
    return bytes((await origin.read_range("f", 0, len(DATA), version=VERSION, deadline=soon())).body)


async def test_the_truth_is_taken() -> None:
    async with origin_of(_part()) as origin:
        assert await _read(origin) == DATA


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_part(bytes([DATA[0] ^ 1]) + DATA[1:]), OriginUnavailableError),
        (_part(DATA[:-1] + bytes([DATA[-1] ^ 1])), OriginUnavailableError),
        (_part(headrace_checksums=""), OriginError),
        (_part(headrace_checksums="0" * 16), OriginError),
        (_part(headrace_checksums="\u00fc" * 3), OriginError),
        (_part(DATA[:-1]), OriginUnavailableError),
        (_part(DATA + b"x"), OriginUnavailableError),
        (_part(Content_Range=f"bytes 1-{len(DATA)}/{len(DATA)}"), VersionChangedError),
        (_part(Content_Range=f"bytes 0-{len(DATA) - 1}/{len(DATA) + 1}"), VersionChangedError),
        (_part(Content_Range="bytes x"), VersionChangedError),
        (lambda handler: handler.send(200, DATA), OriginError),
        (lambda handler: handler.send_json({"code": "origin.version_changed"}, 412), VersionChangedError),
        (lambda handler: handler.send(404, b"<html>"), OriginError),
        (lambda handler: handler.send(302, b"", {"Location": "http://127.0.0.1:1/"}), OriginError),
        (lambda handler: handler.send(401, b"secret"), OriginDeniedError),
        (lambda handler: handler.send(500, b"x" * 100_000), OriginError),
        (lambda handler: handler.send(503, b""), OriginUnavailableError),
        (
            lambda handler: handler.wfile.write(b"HTTP/1.1 " + b"x" * 100_000 + b"\r\n"),
            OriginUnavailableError,
        ),
        (lambda handler: handler.wfile.write(b"\x16\x03\x01 not HTTP\r\n\r\n"), OriginUnavailableError),
    ],
)
async def test_other_bytes_are_never_taken(answer: Answer, kind: type[Exception]) -> None:
    async with origin_of(answer) as origin:
        with pytest.raises(kind) as raised:
            await _read(origin)
        assert "secret" not in str(raised.value)


async def test_an_error_with_a_forged_text_shows_none_of_it() -> None:
    problem = {
        "type": "x",
        "title": "x",
        "status": 404,
        "detail": "evil",
        "code": "path.not_found",
        "what": "evil",
    }
    async with origin_of(lambda handler: handler.send_json(problem, 404)) as origin:
        with pytest.raises(PathNotFoundError) as raised:
            await origin.head("f", deadline=soon())
        assert "evil" not in str(raised.value)
        assert await names_of(origin, "d") == (set(), set())


async def test_a_node_that_drips_does_not_outlast_the_deadline() -> None:
    def drip(handler: FarHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(2000):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)  # what the attack is

    async with origin_of(drip) as origin:
        begun_s = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            async for _ in origin.list_directory("", deadline=soon(1.0)):
                pass
        assert time.monotonic() - begun_s < 40


async def test_the_token_goes_to_the_named_nodes_only() -> None:
    shown: list[str] = []

    def refuse(handler: FarHandler) -> None:
        shown.append(handler.headers["Authorization"])
        handler.send(307, b"", {"Location": f"http://127.0.0.1:1{handler.path}"})

    async with origin_of(refuse, token="of-the-centre") as origin:
        with pytest.raises(OriginError) as raised:
            await names_of(origin)
        assert "of-the-centre" not in str(raised.value)
    assert shown == ["Bearer of-the-centre"]


def _broken_off(handler: FarHandler) -> None:
    handler.send(200, b'{"entries": [], "next"', length=100)
    handler.close_connection = True


async def test_the_next_node_is_asked_when_the_first_can_not_answer() -> None:
    for bad in (
        lambda handler: handler.send(503, b""),
        lambda handler: handler.send_json({"code": "node.unavailable"}, 503),
        lambda handler: handler.connection.close(),
        _broken_off,
    ):
        async with origin_of(bad, entries(row("/good"))) as origin:
            assert await names_of(origin) == ({"good"}, set())


@contextlib.contextmanager
def hanging() -> Iterator[Answer]:
    """Answer that a node lives, and nothing else until the end."""
    end = threading.Event()

    def answer(handler: FarHandler) -> None:
        if handler.path == "/healthz":
            handler.send_json({"ready": True})
        else:
            end.wait(30)

    try:
        yield answer
    finally:
        end.set()


async def test_a_node_that_hangs_holds_no_thread_and_is_not_asked_next() -> None:
    with hanging() as hang:
        async with origin_of(hang, entries(row("/good"))) as origin:
            with pytest.raises(DeadlineExceededError):
                await names_of(origin, limit_s=0.5)
            await until(lambda: not origin._nodes._requests)  # no thread waits for the node
            assert await names_of(origin) == ({"good"}, set())


async def test_a_request_that_nobody_waits_for_is_ended() -> None:
    with hanging() as hang:
        async with origin_of(hang, entries(row("/good"))) as origin:
            reading = asyncio.ensure_future(_read(origin))
            await until(lambda: origin._nodes._requests)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await until(lambda: not origin._nodes._requests)
            assert origin._nodes._current == 0, "that it was cancelled says nothing about the node"


async def test_requests_end_when_the_mount_is_detached() -> None:
    """A thread that waits would keep the process of the node from its end."""
    with hanging() as hang, far(hang) as node:
        url = f"headrace://{node}/top"
        feed = FarChanges(url, parse_options(url, {"allow_http": "true", "events": "on"}))
        receiving = asyncio.ensure_future(feed.receive())
        await until(lambda: feed._nodes._requests)
        begun_s = time.monotonic()
        await feed.close()
        with pytest.raises(OriginUnavailableError):
            await receiving
        await until(lambda: not feed._nodes._requests)
        assert time.monotonic() - begun_s < 30


@pytest.mark.parametrize("key", ["../up", "a/../b", "/a", "a//b", "a\0", ""])
async def test_a_key_that_is_no_path_is_not_asked_for(key: str) -> None:
    async with origin_of(lambda handler: handler.send_json(row("/x"))) as origin:
        with pytest.raises(PathNotFoundError):
            await origin.head(key, deadline=soon())


@pytest.mark.parametrize("token", ["a b", "a\r\nX: 1", "\u00fc", "x" * 5000])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    url = "headrace://127.0.0.1:1"
    with pytest.raises(UsageError) as raised:
        build_far_cluster(url, parse_options(url, {"allow_http": "true", "token": token}))
    assert token not in str(raised.value)


def changes(**fields: Any) -> Answer:
    page = {"feed": "f", "next": 5, "names": [], "is_complete": True, **fields}
    return lambda handler: handler.send_json(page)


@contextlib.asynccontextmanager
async def feed_of(answer: Answer) -> AsyncIterator[FarChanges]:
    with far(answer) as node:
        url = f"headrace://{node}/top"
        feed = FarChanges(url, parse_options(url, {"allow_http": "true", "events": "on"}))
        try:
            yield feed
        finally:
            await feed.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"feed": ""},
        {"feed": "f" * 65},
        {"feed": 5},
        {"feed": "\ud800"},
        {"feed": "f\r\n"},
        {"next": -1},
        {"next": "x"},
        {"names": ["/top/x"] * 1001},
        {"names": 5},
        {"names": [None]},
    ],
)
async def test_a_feed_that_is_none_is_an_error(fields: dict[str, Any]) -> None:
    async with feed_of(changes(**fields)) as feed:
        with pytest.raises(OriginError):
            await feed.receive()


async def test_names_of_a_feed_are_checked() -> None:
    names = ["/top/../etc", "/top/a//b", "/", "", "/top/\ud800", "/top/" + "n" * 256, "/top/" + "d/" * 3000]
    async with feed_of(changes(names=[*names, "/top/good", "/elsewhere/x"])) as feed:
        (message,) = await feed.receive()
        assert isinstance(message.content, ReportedChanges)
        assert [change.key for change in message.content.changes] == [b"top/good", b"elsewhere/x"]
        assert message.content.refused == len(names)


async def test_a_gap_in_a_feed_is_everything() -> None:
    async with feed_of(changes(is_complete=False)) as feed:
        (message,) = await feed.receive()
        assert isinstance(message.content, ReportedChanges)
        assert message.content.is_everything


@pytest.mark.parametrize("body", [b"{}", b'{"leads_back": "no"}', b'{"leads_back": 1}', b"[]", b"\xff", b""])
async def test_an_answer_about_a_trace_that_is_none_is_refused(body: bytes) -> None:
    with far(lambda handler: handler.send(200, body)) as node:
        url = f"headrace://{node}/top"
        trace = FarTrace(url, parse_options(url, {"allow_http": "true"}))
        with pytest.raises(OriginError):
            await trace.leads_back("", instance="i", mount="/m", hops=0, deadline=soon())
        trace.close()


async def test_the_feed_follows_the_next_node_when_one_hangs_or_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_changes, "REQUEST_LIMIT_S", 2.0)
    with hanging() as hang, far(hang) as first, far(changes(is_complete=False)) as second:
        for nodes in (f"{first},{second}", f"127.0.0.1:1,{second}"):
            url = f"headrace://{nodes}/top"
            feed = FarChanges(url, parse_options(url, {"allow_http": "true", "events": "on"}))
            if nodes.startswith(first):
                with pytest.raises(DeadlineExceededError):
                    await feed.receive()
                await until(lambda feed=feed: not feed._nodes._requests)  # type: ignore[misc]
            (message,) = await feed.receive()
            assert isinstance(message.content, ReportedChanges) and message.content.is_everything
            await feed.close()
