"""`headrace rest`: the REST API of a running node, in this process."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import kind_of, log_to_stderr
from headrace.cli.render import print_json, say
from headrace.cli.state import State

DEFAULT_ADDRESS = "unix"


def register(app: typer.Typer) -> None:
    app.command("rest")(rest)


def rest(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Where to listen, beside the unix socket.",
            show_default="the socket only",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="FILE", help="The token that who asks over TCP shows.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen without TLS, or without a token.")
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve a running node's REST API.

    At a unix socket beside the node's, for the same user; with --address by TCP, too: with TLS where tls_certificate,
    tls_key and tls_authority are set, as between nodes. Runs until ^C, SIGTERM or `headrace down --all`.
    """
    import msgspec

    from headrace.cli.state import make_run_folder, remove_state, write_state
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.rest.main import serve

    flags = {"rest_address": address, "rest_token": token, "insecure": insecure or None}
    found = load(flags, file=config).config
    if not found.rest_address:
        found = msgspec.structs.replace(found, rest_address=DEFAULT_ADDRESS)
    state = State(kind="rest", pid=os.getpid(), socket=find_target(socket, cache).socket)
    make_run_folder(found.run_folder)

    def on_ready(address: str) -> None:
        url = state.rest = kind_of("rest").url(found, address)
        write_state(found.run_folder, state)
        if json:
            print_json({"ready": True, "url": url, "socket": state.socket, "pid": state.pid})
        else:
            say(f"ready: {url}")

    log_to_stderr(found.log_level)
    try:
        serve(found, state.socket, on_ready)
    finally:
        remove_state(found.run_folder, state.pid)
    os._exit(0)  # threads of the pool may be waiting for the node
