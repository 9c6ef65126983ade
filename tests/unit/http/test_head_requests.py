"""Answers to HEAD, on a connection on which another request follows."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.http.errors import BadRequestError
from headrace.http.messages import Request, Response
from headrace.http.server import HttpServer

LIMIT_S = 60.0


class Application:
    """Refuses, fails, or answers with a body or with chunks, as the path says. It treats HEAD as GET."""

    def cached(self, request: Request) -> Response | None:
        return None

    def admit(self, request: Request) -> Response | None:
        request.authenticate("anyone")
        return Response(401, body=b"no token") if request.path == b"/refused" else None

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        if request.path == b"/chunks":
            return Response(200, pieces=iter([b"first", b"second"]))
        return Response(200, body=b"answer of " + request.path)

    def refuse(self, error: BadRequestError) -> Response:
        return Response(400, body=error.message.encode())

    def marks(self, response: Response) -> list[tuple[str, str]]:
        return []

    def clean(self) -> None:
        pass


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    server = HttpServer(Application(), listening, name="test")
    thread = threading.Thread(target=server.run)
    thread.start()
    yield listening.getsockname()
    server.stop()
    thread.join(LIMIT_S)


@pytest.mark.parametrize(
    ("path", "head"),
    [
        ("/refused", b"Content-Length: 8"),
        ("/body", b"Content-Length: 15"),
        ("/chunks", b"Transfer-Encoding: chunked"),
    ],
)
def test_no_body_is_taken_for_the_next_answer(address: tuple[str, int], path: str, head: bytes) -> None:
    requests = [
        f"HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    ]
    received = b""
    with socket.create_connection(address, timeout=LIMIT_S) as connection:
        connection.sendall("".join(requests).encode())
        while piece := connection.recv(65536):
            received += piece
    first, second, body = received.split(b"\r\n\r\n")
    assert head in first.split(b"\r\n")
    assert second.startswith(b"HTTP/1.1 200 ")
    assert body == b"answer of /next"
