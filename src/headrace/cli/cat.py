"""Implements `headrace cat`: writes the bytes of a file, through the cache and without a mount."""

from __future__ import annotations

import os
import sys

import typer

from headrace.cli import options
from headrace.cli.render import print_json


def register(app: typer.Typer) -> None:
    app.command("cat")(cat)


def cat(
    path: options.Path,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Write a file to stdout.

    --json prints its bytes as base64.
    """
    from headrace.cli.request import client_of

    with client_of(socket, cache, path) as (client, target):
        pieces = client.read(os.fsencode(target.path))
        if json:
            import base64

            print_json({"path": target.path, "base64": base64.b64encode(b"".join(pieces)).decode()})
            return
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
