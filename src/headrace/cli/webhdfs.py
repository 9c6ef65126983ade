"""`headrace webhdfs`: the tree of a running node by the WebHDFS protocol, in this process."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import log_to_stderr
from headrace.cli.render import print_json, say
from headrace.cli.state import State

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
    import msgspec

    from headrace.cli.state import make_run_folder, remove_state, write_state
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.webhdfs.main import serve

    found = load({"webhdfs_address": address, "insecure": insecure or None}, file=config).config
    if not found.webhdfs_address:
        found = msgspec.structs.replace(found, webhdfs_address=DEFAULT_ADDRESS)
    state = State(kind="webhdfs", pid=os.getpid(), socket=find_target(socket, cache).socket)
    make_run_folder(found.run_folder)

    def on_ready(bound: str) -> None:
        state.webhdfs = f"http://{bound}"
        write_state(found.run_folder, state)
        if json:
            print_json({"ready": True, "url": state.webhdfs, "socket": state.socket, "pid": state.pid})
        else:
            say(f"ready: webhdfs://{bound} (whoever reaches it may do everything)")

    log_to_stderr(found.log_level)
    try:
        serve(found, state.socket, on_ready)
    finally:
        remove_state(found.run_folder, state.pid)
    os._exit(0)  # threads of the pool may be waiting for the node
