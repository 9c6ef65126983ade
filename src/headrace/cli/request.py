"""One question, or a client, to the node that a command means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from headrace.cli.target import Target, find_target
from headrace.sdk.connection import Connection
from headrace.sdk.node_client import NodeClient, connect
from headrace.wire.messages import Answer, Message


def ask(request: Message, socket: str | None, cache: str | None) -> Answer:
    """Blocks; raises the HeadraceError that the node answers."""
    connection = connection_to(find_target(socket, cache).socket)
    try:
        return connection.ask(request)
    finally:
        connection.close()


def connection_to(where: str) -> Connection:
    """where: a node's socket, or REST APIs of nodes of other hosts."""
    if "://" not in where and not where.startswith("unix:"):
        return Connection(where, role="cli")
    from headrace.sdk.remote.node import RemoteConnection

    return cast(Connection, RemoteConnection(where))  # it has the calls that commands make


def client_at(where: str) -> NodeClient:
    """As connection_to."""
    if "://" not in where and not where.startswith("unix:"):
        return connect(where, role="cli")
    from headrace.sdk.remote.node import RemoteClient

    return cast(NodeClient, RemoteClient(where))  # it has the calls that ls, stat and cat make


@contextmanager
def client_of(socket: str | None, cache: str | None, path: str) -> Iterator[tuple[NodeClient, Target]]:
    """A client of that node, closed at the end, and where PATH is in its namespace."""
    target = find_target(socket, cache, path)
    client = client_at(target.socket)
    try:
        yield client, target
    finally:
        client.close()
