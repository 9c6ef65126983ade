"""A request to a node waits as long as the node lives, also over TLS, where a readable socket may have no answer."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.errors import NodeUnavailableError
from headrace.http import node_connection
from headrace.http.node_connection import Address, HttpConnection
from tests.integration.door.certificates import make_certificate

LIMIT_S = 60.0
BODY = bytes(range(256)) * 1000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)
pytestmark = pytest.mark.timeout(300)


class Node:
    """Answers requests one after the other, each when `answers` is set: with `sent`, and then with the rest of a body
    when `goes_on` is set. Over TLS it sends tickets, as most servers do."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.answers, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()
        self.sent, self.rest = ANSWER + BODY, b""
        self.requests = 0
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            stream = connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
            received = b""
            while piece := stream.recv(1 << 16):
                received += piece
                if not received.endswith(b"\r\n\r\n"):
                    continue
                received = b""
                self.requests += 1
                self.answers.wait(LIMIT_S)
                stream.sendall(self.sent)
                self.goes_on.wait(LIMIT_S)
                stream.sendall(self.rest)

    def close(self) -> None:
        self.answers.set()
        self.goes_on.set()
        self._listener.close()


@pytest.fixture(params=["plain", "tls"])
def node(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Node, Address]]:
    """A node, and its address. A node is silent soon."""
    monkeypatch.setattr(node_connection, "SILENCE_S", 0.05)
    monkeypatch.setattr(node_connection, "CONNECT_S", LIMIT_S)
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None
    if request.param == "tls":
        make_certificate(tmp_path, "node")
        certificate = tmp_path / "certificate.pem"
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, tmp_path / "key.pem")
        assert server.num_tickets > 0
        client = ssl.create_default_context(cafile=str(certificate))
    node = Node(server)
    yield node, Address(node.url, client)
    node.close()


def alive_until(checks: int, then: Callable[[], object]) -> Callable[[], bool]:
    """Return a check of a live node, which calls `then` at its last time."""
    count = 0

    def is_alive() -> bool:
        nonlocal count
        count += 1
        if count == checks:
            then()
        return True

    return is_alive


def test_a_live_node_has_as_long_as_it_needs(
    node: tuple[Node, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put may wait for its origin for minutes, and a repeated one would wait as long again."""
    serving, address = node
    monkeypatch.setattr(node_connection, "STALL_S", 0.1)
    connection = HttpConnection(address, alive_until(20, serving.answers.set))
    monkeypatch.setattr(node_connection, "STALL_S", LIMIT_S)
    for _ in range(2):
        assert connection.ask("GET", "/", {}).read_exactly(len(BODY)) == BODY
    assert serving.requests == 2
    connection.close()


def test_a_node_that_dies_meanwhile_is_away(node: tuple[Node, Address]) -> None:
    connection = HttpConnection(node[1], lambda: False)
    with pytest.raises(NodeUnavailableError, match="it stopped answering"):
        connection.ask("GET", "/", {})
    connection.close()


@pytest.mark.parametrize("sent", [ANSWER, ANSWER + BODY[:1000]])
def test_a_body_that_stalls_is_an_error(
    sent: bytes, node: tuple[Node, Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at a live node: a part of an answer is there."""
    serving, address = node
    monkeypatch.setattr(node_connection, "STALL_S", 0.2)
    serving.sent = sent
    serving.goes_on.clear()
    serving.answers.set()
    connection = HttpConnection(address, lambda: True)
    response = connection.ask("GET", "/", {})
    assert response.status == 200
    with pytest.raises(NodeUnavailableError, match="it sent nothing more"):
        response.read_exactly(len(BODY))
    connection.close()


def test_a_request_that_is_aborted_ends(node: tuple[Node, Address]) -> None:
    serving, address = node
    connection = HttpConnection(address, alive_until(3, lambda: connection.abort()))
    with pytest.raises(NodeUnavailableError):
        connection.ask("GET", "/", {})
    assert serving.requests == 1
    connection.close()


def test_a_connection_that_is_dropped_is_freed_at_once(node: tuple[Node, Address]) -> None:
    """A forked child drops those of its parent, and has no time for the collector of cycles."""
    serving, address = node
    serving.answers.set()
    gc.collect()
    gc.disable()
    try:
        connection = HttpConnection(address, lambda: True)
        assert connection.ask("GET", "/", {}).read_exactly(len(BODY)) == BODY
        dropped = weakref.ref(connection)
        del connection
        assert dropped() is None
    finally:
        gc.enable()


def test_an_answer_that_closes_the_connection_can_be_read(node: tuple[Node, Address]) -> None:
    serving, address = node
    serving.sent = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + BODY
    serving.answers.set()
    connection = HttpConnection(address, lambda: True)
    for _ in range(2):
        response = connection.ask("GET", "/", {})
        target = bytearray(len(BODY))
        response.read_into(memoryview(target))
        assert target == BODY
        assert not connection.is_open
    connection.close()
