"""A client of many nodes learns members from them, and forgets those that are gone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from headrace.http.node_connection import Address
from headrace.vfs.remote.cluster_client import ClusterClient

pytestmark = pytest.mark.timeout(300)


class Handler(BaseHTTPRequestHandler):
    """Reports the members with these addresses."""

    protocol_version = "HTTP/1.1"
    members: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        row = {"address": "", "zone": "", "capacity_bytes": 1, "draining": False}
        members = [{"id": str(number), "api": api, **row} for number, api in enumerate(self.members)]
        body = json.dumps({"node": "", "replicas": 1, "members": members}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    Handler.members = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def dead() -> Iterator[str]:
    """The address of a node that does not answer."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


def urls_of(client: ClusterClient) -> set[str]:
    return {node.address.url for node in client._order()}


def view(client: ClusterClient, *members: str) -> set[str]:
    """Let the client read a view of these members, and return the addresses that it knows then."""
    Handler.members = list(members)
    client._fetch_members()
    return {node.address.url for node in client._order()}


def test_a_member_that_left_and_is_dead_is_forgotten(server: ThreadingHTTPServer, dead: str) -> None:
    """Clusters whose nodes come and go have thousands of them in the end."""
    live = f"http://127.0.0.1:{server.server_port}"
    client = ClusterClient([Address(live, None)], None, patience_s=0)
    try:
        assert view(client, live, dead) == {live, dead}
        (gone,) = [node for node in client._order() if node.address.url == dead]
        assert view(client, live) == {live, dead}, "it may answer, and the view of one node may be old"
        gone.bad, gone.probe_at_s = True, float("inf")
        assert view(client, live, dead) == {live, dead}, "it is a member and may come back"
        assert view(client) == {live}
    finally:
        client.close()


def test_a_named_node_is_never_forgotten(server: ThreadingHTTPServer, dead: str) -> None:
    live = f"http://127.0.0.1:{server.server_port}"
    client = ClusterClient([Address(live, None), Address(dead, None)], None, patience_s=0)
    try:
        for node in client._order():
            node.bad, node.probe_at_s = node.address.url == dead, float("inf")
        assert view(client, live) == {live, dead}
    finally:
        client.close()
