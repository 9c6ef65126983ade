"""`headrace rest`: the REST API of a running node, in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import kind_of, serve_here

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
    user: options.User = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve a running node's REST API.

    At a unix socket beside the node's, for the same user; with --address by TCP, too: with TLS where tls_certificate,
    tls_key and tls_authority are set, as between nodes. Runs until ^C, SIGTERM or `headrace down --all`.
    """
    from headrace.cli.lowered import account_for, start_as
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.rest.main import serve

    flags = {"rest_address": address, "rest_token": token, "rest_insecure": insecure or None}
    found = load({**flags, "user": user}, file=config).config
    start_as(account_for(found), found)
    serve_here(
        kind_of("rest"),
        found,
        find_target(socket, cache).socket,
        serve,
        default_address=DEFAULT_ADDRESS,
        ready=lambda url, _: f"ready: {url}",
        json=json,
    )
