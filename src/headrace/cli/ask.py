"""One question to the node that a command means."""

from __future__ import annotations

from headrace.cli.target import find_target
from headrace.sdk.connection import Connection
from headrace.wire.messages import Answer, Message


def ask(request: Message, socket: str | None, cache: str | None) -> Answer:
    """Blocks; raises the HeadraceError that the node answers."""
    connection = Connection(find_target(socket, cache).socket, role="cli")
    try:
        return connection.ask(request)
    finally:
        connection.close()
