"""`headrace status`: what the node holds and does, and which mounts it has on this host."""

from __future__ import annotations

import typer

from headrace.cli import options
from headrace.cli.render import print_tree


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Print the state of the node, its cache, its origins and its mounts."""
    from headrace.cli.state import read_states
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.sdk.connection import Connection
    from headrace.wire.messages import Report, StatusAsk

    at = find_target(socket, cache).socket
    connection = Connection(at, role="cli")
    try:
        answer = connection.ask(StatusAsk())
    finally:
        connection.close()
    assert isinstance(answer, Report)
    sessions = [
        {
            "mountpoint": one.mountpoint,
            "io": one.io,
            "why": one.why,
            "pid": one.pid,
            "session_pid": one.session_pid,
        }
        for one in read_states(load().config.run_folder)
        if one.socket == at and one.mountpoint
    ]
    print_tree({**answer.status, "sessions": sessions}, as_json=json)
