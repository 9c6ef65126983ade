"""Implements `headrace rest`: serves the REST API of a running node, in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import serve_here

DEFAULT_ADDRESS = "unix"


def register(app: typer.Typer) -> None:
    app.command("rest")(rest)


def rest(
    address: Annotated[
        str | None,
        options.define(
            "--address",
            "HOST:PORT",
            "Address where the API listens over TCP, beside its Unix socket.",
            default="the Unix socket only",
        ),
    ] = None,
    token: Annotated[
        str | None,
        options.define("--token", "FILE", "File with the bearer token that TCP clients must send."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow to listen beyond loopback without TLS, or without a token or certificates.",
        ),
    ] = False,
    user: options.User = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve the REST API of a running node.

    The API listens at a Unix socket beside the node's, for the same user. With --address it listens over TCP, too. It
    speaks TLS there if tls_certificate, tls_key and tls_authority are set, as between nodes. It runs until ^C, SIGTERM
    or `headrace down --all`.
    """
    serve_here(
        "rest",
        {"rest_address": address, "rest_token": token, "rest_insecure": insecure or None, "user": user},
        file=config,
        socket=socket,
        cache=cache,
        default_address=DEFAULT_ADDRESS,
        ready=lambda _config, url, _bound: f"ready: {url}",
        json=json,
    )
