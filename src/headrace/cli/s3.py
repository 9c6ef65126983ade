"""`headrace s3`: the tree of a running node by the S3 protocol, in this process."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import log_to_stderr
from headrace.cli.render import print_json, say
from headrace.cli.state import State

DEFAULT_ADDRESS = "127.0.0.1:9000"


def register(app: typer.Typer) -> None:
    app.command("s3")(s3)


def s3(
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Where to listen.", show_default=DEFAULT_ADDRESS),
    ] = None,
    credentials: Annotated[
        str | None,
        typer.Option(
            "--credentials", metavar="FILE", help="Access keys that may sign, like ~/.aws/credentials."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where others reach it, without TLS.")
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve a running node's tree by the S3 protocol.

    A bucket is a folder at the top of the tree, such as the path of a mount; keys are the paths below it. Runs until
    ^C, SIGTERM or `headrace down --all`. Without --credentials (or s3_credentials) no request has to be signed.
    """
    import msgspec

    from headrace.cli.state import make_run_folder, remove_state, write_state
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.s3.main import serve

    flags = {"s3_address": address, "s3_credentials": credentials, "insecure": insecure or None}
    found = load(flags, file=config).config
    if not found.s3_address:
        found = msgspec.structs.replace(found, s3_address=DEFAULT_ADDRESS)
    state = State(kind="s3", pid=os.getpid(), socket=find_target(socket, cache).socket)
    make_run_folder(found.run_folder)

    def on_ready(bound: str) -> None:
        state.s3 = f"{'https' if found.s3_tls_certificate else 'http'}://{bound}"
        write_state(found.run_folder, state)
        if json:
            print_json({"ready": True, "url": state.s3, "socket": state.socket, "pid": state.pid})
        else:
            say(f"ready: {state.s3}" + ("" if found.s3_credentials else " (no signatures are asked for)"))

    log_to_stderr(found.log_level)
    try:
        serve(found, state.socket, on_ready)
    finally:
        remove_state(found.run_folder, state.pid)
    os._exit(0)  # threads of the pool may be waiting for the node
