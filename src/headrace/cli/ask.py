"""One question, or a client, to the node that a command means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.target import Target, find_target
from headrace.sdk.client import Client, connect
from headrace.sdk.connection import Connection
from headrace.wire.messages import Answer, Message


def ask(request: Message, socket: str | None, cache: str | None) -> Answer:
    """Blocks; raises the HeadraceError that the node answers."""
    connection = Connection(find_target(socket, cache).socket, role="cli")
    try:
        return connection.ask(request)
    finally:
        connection.close()


@contextmanager
def client_of(socket: str | None, cache: str | None, path: str) -> Iterator[tuple[Client, Target]]:
    """A client of that node, closed at the end, and where PATH is in its namespace."""
    target = find_target(socket, cache, path)
    client = connect(target.socket, role="cli")
    try:
        yield client, target
    finally:
        client.close()
