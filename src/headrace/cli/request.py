"""Connects to the node that a command selects, for one request or as a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.target import Target, find_target
from headrace.client.connection import Connection
from headrace.client.node_client import connect
from headrace.wire.message import Message
from headrace.wire.messages import Answer

if TYPE_CHECKING:
    from headrace.client.path_reader import PathReader
    from headrace.vfs.remote.node import RemoteClient, RemoteConnection


def ask(request: Message, socket: str | None, cache: str | None) -> Answer:
    """Send a request to the node, and block until its answer. Raises the HeadraceError of the answer."""
    connection = connection_to(find_target(socket, cache).socket)
    try:
        return connection.ask(request)
    finally:
        connection.close()


def connection_to(where: str) -> Connection | RemoteConnection:
    """Connect to the socket of a node, or to REST APIs of nodes on other hosts."""
    if "://" not in where and not where.startswith("unix:"):
        return Connection(where, role="cli")
    from headrace.vfs.remote.node import RemoteConnection

    return RemoteConnection(where)


def client_at(where: str) -> PathReader | RemoteClient:
    """Return a client of the node, as `connection_to` connects."""
    if "://" not in where and not where.startswith("unix:"):
        from headrace.vfs.sealed_reader import SealedReader  # the vfs takes long to import

        return SealedReader(connect(where, role="cli"))
    from headrace.vfs.remote.node import RemoteClient

    return RemoteClient(where)


@contextmanager
def client_of(
    socket: str | None, cache: str | None, path: str
) -> Iterator[tuple[PathReader | RemoteClient, Target]]:
    """Yield a client of the selected node, and PATH in its namespace. Closes the client at the end."""
    target = find_target(socket, cache, path)
    client = client_at(target.socket)
    try:
        yield client, target
    finally:
        client.close()
