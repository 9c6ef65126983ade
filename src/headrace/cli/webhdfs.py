"""`headrace webhdfs`: the tree of a running node by the WebHDFS protocol, in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import kind_of, serve_here

DEFAULT_ADDRESS = "127.0.0.1:9870"
"""The port is that of HDFS, which clients take where none is named."""


def register(app: typer.Typer) -> None:
    app.command("webhdfs")(webhdfs)


def webhdfs(
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Where to listen.", show_default=DEFAULT_ADDRESS),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen where others reach it: whoever does may read and write all."),
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve a running node's tree by the WebHDFS protocol, for Hadoop's clients.

    webhdfs://HOST:PORT/a/b is /a/b of the tree. Runs until ^C, SIGTERM or `headrace down --all`. Nobody is asked who he
    is: the name that a client gives is believed.
    """
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.webhdfs.main import serve

    found = load({"webhdfs_address": address, "webhdfs_insecure": insecure or None}, file=config).config
    serve_here(
        kind_of("webhdfs"),
        found,
        find_target(socket, cache).socket,
        serve,
        default_address=DEFAULT_ADDRESS,
        ready=lambda url, bound: (
            f"ready: {'s' * url.startswith('https')}webhdfs://{bound} (whoever reaches it may do everything)"
        ),
        json=json,
    )
