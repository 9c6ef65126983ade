"""Parts of a file of another host are of one version, also from a node that names none or does not compare it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import pytest
import xxhash

from headrace.base.errors import ProtocolError, VersionChangedError
from headrace.testing.waiting import wait_for
from headrace.vfs.remote import cluster_client, content
from headrace.vfs.remote.cluster_client import STEP_BYTES, ClusterClient
from headrace.vfs.remote.content import RemoteContent
from headrace.vfs.remote.remote_vfs import RemoteVfs
from tests.unit.vfs.remote_node import remote_namespaces

LIMIT_S = 60.0
MIB = 1 << 20
SIZE = 2 * STEP_BYTES + 3
VERSIONS = {'"old"': b"o" * SIZE, '"new"': b"n" * SIZE}
OpenVfs = Callable[..., RemoteVfs]


class Handler(BaseHTTPRequestHandler):
    """Serves the old version to the first request for bytes, and the new one to later ones. is_replaced: False if
    there is only the old one. names_tags: its answers have ETags. compares: it refuses a request for another version.
    size: what it says of the entry. held_from: bytes from there on are sent when `may_send` is set."""

    protocol_version = "HTTP/1.1"
    is_replaced: ClassVar[bool] = True
    names_tags: ClassVar[bool] = True
    compares: ClassVar[bool] = False
    size: ClassVar[object] = SIZE
    mtime_ns: ClassVar[int] = 0
    may_send: ClassVar[threading.Event]
    held_from: ClassVar[int] = SIZE
    requests: ClassVar[list[str]]

    def do_GET(self) -> None:
        if self.path.startswith("/v1/cluster"):
            self._answer(200, json.dumps({"node": "", "replicas": 1, "members": []}).encode())
        elif self.path.startswith("/v1/entry"):
            row = {
                "path": "/f",
                "kind": "file",
                "size_bytes": self.size,
                "mtime_ns": self.mtime_ns,
                "version": "old",
            }
            self._answer(200, json.dumps(row).encode())
        else:
            self._send_bytes()

    def _send_bytes(self) -> None:
        self.requests.append(self.headers["range"])
        tag = '"new"' if self.is_replaced and len(self.requests) > 1 else '"old"'
        if self.compares and self.headers.get("if-match", tag) != tag:
            code = VersionChangedError.code
            body = {"type": "", "title": "", "status": 412, "detail": "", "code": code, "what": "/f"}
            self._answer(412, json.dumps(body).encode())
            return
        first, _, last = self.headers["range"].removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, SIZE)
        if start >= self.held_from:
            self.may_send.wait(LIMIT_S)
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{SIZE}"}
        if self.names_tags:
            headers["ETag"] = tag
        self._answer(206, VERSIONS[tag][start:end], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        pieces = (body[start : start + MIB] for start in range(0, len(body), MIB))
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("headrace-checksums", ",".join(map(xxhash.xxh3_64_hexdigest, pieces)))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client reads no bytes of another version
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def open_vfs() -> Iterator[OpenVfs]:
    """Call with the attributes of the node's Handler."""
    with remote_namespaces() as open_namespace:
        yield lambda **attributes: open_namespace(
            type("Versioned", (Handler,), {"requests": [], **attributes})
        )


def test_a_file_that_is_replaced_within_a_read_is_read_again(open_vfs: OpenVfs) -> None:
    assert open_vfs(compares=True).read(b"/f", 0, None) == VERSIONS['"new"']


def test_bytes_without_a_version_are_an_error(open_vfs: OpenVfs) -> None:
    """The parts after the first could be of any version."""
    with pytest.raises(ProtocolError, match="version"):
        open_vfs(names_tags=False).read(b"/f", 0, None)


def test_a_node_that_does_not_compare_versions_sends_no_bytes_of_another_one(open_vfs: OpenVfs) -> None:
    assert open_vfs(compares=False).read(b"/f", 0, None) == VERSIONS['"new"'], "the read began again"


@pytest.mark.parametrize("compares", [False, True])
def test_an_open_file_never_has_bytes_of_another_version(open_vfs: OpenVfs, *, compares: bool) -> None:
    opened = open_vfs(compares=compares).content(b"/f")
    target = bytearray(SIZE)
    try:
        assert opened.read(0, 10) == VERSIONS['"old"'][:10]
        with pytest.raises(VersionChangedError):
            opened.read(10, 20)
        with pytest.raises(VersionChangedError):
            opened.read_into(memoryview(target), 0)
        with pytest.raises(VersionChangedError):
            opened.wait_whole()
        assert opened.fd == -1
    finally:
        opened.close()
    assert not any(target)


# ------------------------------------------------------------ sizes of entries


@pytest.mark.parametrize("size", [-1, 1 << 63, 10**30, 1.5, "7"])
def test_an_entry_of_a_size_that_no_file_has_is_an_error(open_vfs: OpenVfs, size: object) -> None:
    vfs = open_vfs(size=size)
    with pytest.raises(ProtocolError, match=r"answer of|no file has its size or its time"):
        vfs.content(b"/f")


@pytest.mark.parametrize("sign", [1, -1])
def test_an_entry_of_a_time_that_no_file_has_is_an_error(open_vfs: OpenVfs, sign: int) -> None:
    far_ns = 20_000_000_000 * 1_000_000_000  # tmpfs has such times, beyond 64 bits of nanoseconds
    assert open_vfs(mtime_ns=sign * far_ns).look(b"/f", follow=True).mtime_ns == sign * far_ns
    with pytest.raises(ProtocolError, match=r"answer of|no file has its size or its time"):
        open_vfs(mtime_ns=sign * 10**400).find(b"/f")


def test_an_entry_of_a_vast_size_takes_no_memory_for_it(
    open_vfs: OpenVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    fetch_into = content.fetch_into

    def fetch(nodes: ClusterClient, path: bytes, etag: str, target: memoryview, start: int) -> None:
        asked.append(len(target))
        assert len(target) <= content.FIRST_PART_BYTES
        fetch_into(nodes, path, etag, target, start)

    monkeypatch.setattr(content, "fetch_into", fetch)
    opened = open_vfs(size=(1 << 63) - 1, is_replaced=False).content(b"/f")
    try:
        with pytest.raises(ProtocolError):
            opened.wait_whole()
        assert opened.fd == -1
    finally:
        opened.close()
    assert len(asked) == 1


def test_a_whole_file_arrives_in_steps(open_vfs: OpenVfs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "FIRST_PART_BYTES", STEP_BYTES)
    opened = open_vfs(is_replaced=False).content(b"/f")
    try:
        fd = opened.wait_whole()
        assert os.fstat(fd).st_size == SIZE
        assert os.pread(fd, SIZE + 1, 0) == VERSIONS['"old"']
        assert opened.wait_whole() == fd
    finally:
        opened.close()


# ------------------------------------------------------------ forks


def test_a_forked_child_reads_on_where_its_parent_read_ahead(open_vfs: OpenVfs) -> None:
    """It has no thread that fetches the next window."""
    may_send, window = threading.Event(), content.WINDOW_BYTES_MIN
    opened = open_vfs(is_replaced=False, held_from=2 * window, may_send=may_send).content(b"/f")
    assert isinstance(opened, RemoteContent)
    target = memoryview(bytearray(window))
    for start in (0, window):
        assert opened.read_into(target, start) == window
    assert opened._next is not None, "the next window is being fetched"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            count = opened.read_into(target, 2 * window)
            code = 0 if target[:count] == VERSIONS['"old"'][:count] else 2
        finally:
            os._exit(code)
    may_send.set()
    try:
        wait_for(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), limit_s=LIMIT_S)
    finally:
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0
    assert opened.read_into(target, 2 * window) == window
    opened.close()


# ------------------------------------------------------------ long answers


def test_an_answer_without_end_takes_no_memory_for_it(
    open_vfs: OpenVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    vfs = open_vfs()
    monkeypatch.setattr(cluster_client, "ANSWER_BYTES_MAX", 20)
    with pytest.raises(ProtocolError, match="more than 20 bytes"):
        vfs.content(b"/f")
