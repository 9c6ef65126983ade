"""A node may refuse a put before it has all bytes. The library reports why, and sends the bytes to no other node."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from headrace.base.errors import HeadraceError, NodeUnavailableError, ProtocolError, ReadOnlyError
from headrace.http.node_connection import Address
from headrace.vfs.remote.cluster_client import ClusterClient

LIMIT_S = 60.0
BODY_BYTES = 64 << 20
"""More than the buffers of two sockets hold."""
READ_BYTES = 1 << 20
"""Bytes of the body that the node reads before it closes the connection, whose rest the kernel then refuses."""
pytestmark = pytest.mark.timeout(300)


def problem(code: str) -> bytes:
    return json.dumps(
        {"type": "", "title": "", "status": 403, "detail": "", "code": code, "what": "/f", "why": "it is so"}
    ).encode()


REFUSED = problem(ReadOnlyError.code)


class RefusingNode:
    """Answers a put with `answer`, and closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self.puts = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(f"http://127.0.0.1:{self._listener.getsockname()[1]}", None)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(LIMIT_S)
            received = b""
            while b"\r\n\r\n" not in received:
                piece = connection.recv(1 << 16)
                if not piece:
                    return
                received += piece
            if not received.startswith(b"PUT"):
                members = json.dumps({"node": "", "replicas": 1, "members": []}).encode()
                connection.sendall(head(200, members) + members)
                return
            self.puts += 1
            connection.sendall(self._answer)
            left = READ_BYTES
            while left > 0 and (piece := connection.recv(left)):
                left -= len(piece)

    def close(self) -> None:
        self._listener.close()


def head(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d x\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body))


@pytest.fixture
def start() -> Iterator[Callable[[bytes], RefusingNode]]:
    nodes: list[RefusingNode] = []

    def start_one(answer: bytes) -> RefusingNode:
        nodes.append(RefusingNode(answer))
        return nodes[-1]

    yield start_one
    for node in nodes:
        node.close()


@pytest.fixture
def body(tmp_path: Path) -> Callable[[], IO[bytes]]:
    file = tmp_path / "body"
    with file.open("wb") as out:
        out.truncate(BODY_BYTES)
    return lambda: file.open("rb")


def put(node: RefusingNode, body: Callable[[], IO[bytes]]) -> HeadraceError | None:
    client = ClusterClient([node.address], None, patience_s=0)
    try:
        client.change("writeContent", {"path": b"/f", "replace": True}, body=body)
    except HeadraceError as error:
        return error
    finally:
        client.close()
    return None


def test_the_reason_of_a_refusal_is_reported(
    start: Callable[[bytes], RefusingNode], body: Callable[[], IO[bytes]]
) -> None:
    node = start(head(403, REFUSED) + REFUSED)
    error = put(node, body)
    assert isinstance(error, ReadOnlyError)
    assert error.why == "it is so"
    assert node.puts == 1


@pytest.mark.parametrize("status", [200, 202, 301, 302, 307, 304])
def test_an_answer_of_another_status_is_no_success(
    status: int, start: Callable[[bytes], RefusingNode], tmp_path: Path
) -> None:
    """A proxy may answer in place of a node: with a redirect, or a page of its own. The bytes are nowhere."""
    (tmp_path / "small").write_bytes(b"bytes")
    node = start(head(status, b"") + b"")
    error = put(node, lambda: (tmp_path / "small").open("rb"))
    assert isinstance(error, ProtocolError)
    assert str(status) in error.why


def test_the_status_of_the_table_is_success(start: Callable[[bytes], RefusingNode], tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"bytes")
    assert put(start(head(204, b"")), lambda: (tmp_path / "small").open("rb")) is None


@pytest.mark.parametrize("answer", [b"", b"HTTP/1", head(403, REFUSED) + REFUSED[:10], head(204, b"")])
def test_a_node_that_breaks_off_is_away(
    answer: bytes, start: Callable[[bytes], RefusingNode], body: Callable[[], IO[bytes]]
) -> None:
    """One that accepts a put without its bytes, too."""
    assert isinstance(put(start(answer), body), NodeUnavailableError)
