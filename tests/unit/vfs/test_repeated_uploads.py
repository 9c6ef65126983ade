"""A new file whose upload lost its answer: the library does not take it for the file of another client."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from headrace.base.errors import PathExistsError
from headrace.http.node_connection import Address
from headrace.vfs.remote.cluster_client import ClusterClient
from headrace.vfs.remote.remote_vfs import RemoteVfs
from headrace.wire.api import UPLOAD_HEADER

pytestmark = pytest.mark.timeout(300)
EXISTS = json.dumps(
    {"type": "", "title": "", "status": 409, "detail": "", "code": PathExistsError.code, "what": "/f"}
).encode()


class Handler(BaseHTTPRequestHandler):
    """All nodes have one namespace with one file. breaks_off: this node creates it, and gives no answer."""

    protocol_version = "HTTP/1.1"
    created: ClassVar[list[str]]
    breaks_off: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    own: ClassVar[set[str]]

    def do_GET(self) -> None:
        if self.path.startswith("/v1/cluster"):
            self._answer(200, json.dumps({"node": "", "replicas": 1, "members": []}).encode())
        else:
            self._answer(200, b"{}")

    def do_PUT(self) -> None:
        upload = self.headers.get(UPLOAD_HEADER, "")
        self.rfile.read(int(self.headers["content-length"]))
        if self.remembers and upload in self.own:
            self._answer(204, b"")
        elif self.created:
            self._answer(409, EXISTS)
        else:
            self.created.append(upload)
            self.own.add(upload)
            if self.breaks_off:
                self.close_connection = True
            else:
                self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


Serve = Callable[..., Address]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Call with the attributes of a node."""
    servers: list[ThreadingHTTPServer] = []
    created: list[str] = []

    def start(**attributes: object) -> Address:
        kind = type("Node", (Handler,), {"created": created, "own": set(), **attributes})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), kind))
        servers[-1].daemon_threads = True
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return Address(f"http://127.0.0.1:{servers[-1].server_port}", None)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def put(addresses: list[Address], *, first: Address, patience_s: float = 0.0) -> None:
    client = ClusterClient(addresses, None, patience_s=patience_s)
    client._home = next(node for node in client._known.values() if node.address is first)
    vfs = RemoteVfs(client)
    fd = os.memfd_create("put")
    try:
        os.write(fd, b"bytes")
        vfs._put(fd, b"/f", replace=False)
    finally:
        os.close(fd)
        vfs.close()


def test_the_node_that_broke_off_knows_the_upload(serve: Serve) -> None:
    first, second = serve(breaks_off=True), serve()
    put([first, second], first=first)


def test_an_upload_to_the_only_node_is_repeated(serve: Serve) -> None:
    only = serve(breaks_off=True)
    put([only], first=only, patience_s=60.0)


def test_a_file_of_another_client_exists(serve: Serve) -> None:
    first, second = serve(), serve()
    put([first, second], first=first)
    for address in (first, second):
        with pytest.raises(PathExistsError):
            put([first, second], first=address)


def test_a_node_that_does_not_know_the_upload_any_more_can_not_tell(serve: Serve) -> None:
    """It was restarted. The file may be of another client, and two would have it."""
    first, second = serve(breaks_off=True, remembers=False), serve()
    with pytest.raises(PathExistsError):
        put([first, second], first=first)
