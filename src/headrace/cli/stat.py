"""Implements `headrace stat`: prints the attributes of a path."""

from __future__ import annotations

import os

import typer

from headrace.cli import options
from headrace.cli.ls import show_mtime
from headrace.cli.render import print_tree


def register(app: typer.Typer) -> None:
    app.command("stat")(stat)


def stat(
    path: options.Path,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the attributes of a path, and where it is cached.

    `owners` are the nodes that the ring gives, `holders` those that keep a copy because the file is hot.
    """
    import msgspec

    from headrace.base.model import Kind
    from headrace.cli.request import ask, client_of
    from headrace.wire.location_messages import LocationAsk, LocationShown

    with client_of(socket, cache, path) as (client, target):
        entry = client.resolve(os.fsencode(target.path))
        row: dict[str, object] = {
            "path": target.path,
            "kind": entry.kind.name.lower(),
            "id": int(entry.id),
            "size_bytes": entry.version.size_bytes,
            "mtime": show_mtime(entry.version.mtime_ns),
        }
        if entry.kind is Kind.FILE:
            row.update(client.file_state(entry.id))
            del row["socket"]  # the node that answered
            shown = ask(LocationAsk(os.fsencode(target.path)), target.socket, None)
            assert isinstance(shown, LocationShown)
            row["location"] = msgspec.to_builtins(shown.location)
    print_tree(row, as_json=json)
