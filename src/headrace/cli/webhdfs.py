"""Implements `headrace webhdfs`: serves a running node's namespace to Hadoop clients, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import serve_here

if TYPE_CHECKING:
    from headrace.config.schema import Config

DEFAULT_ADDRESS = "127.0.0.1:9870"
"""Address with the port of HDFS, which clients use by default."""


def register(app: typer.Typer) -> None:
    app.command("webhdfs")(webhdfs)


def webhdfs(
    address: Annotated[
        str | None,
        options.define(
            "--address", "HOST:PORT", "Address where the gateway listens.", default=DEFAULT_ADDRESS
        ),
    ] = None,
    token: Annotated[
        str | None,
        options.define(
            "--token",
            "FILE",
            "File with the bearer token that clients must send.",
            default="a token that the gateway creates",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Accept requests without a token, and listen without TLS beyond loopback."
        ),
    ] = False,
    user: options.User = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve the namespace of a running node to Hadoop clients.

    The gateway speaks WebHDFS: webhdfs://HOST:PORT/a/b is /a/b of the namespace. It runs until ^C, SIGTERM or
    `headrace down --all`. Without --token (or the setting webhdfs_token), it creates a token at its first start.
    The token is in a file of the cache directory that only its user can read.
    """
    serve_here(
        "webhdfs",
        {
            "webhdfs_address": address,
            "webhdfs_token": token,
            "webhdfs_insecure": insecure or None,
            "user": user,
        },
        file=config,
        socket=socket,
        cache=cache,
        default_address=DEFAULT_ADDRESS,
        ready=lambda settings, url, bound: (
            f"ready: {'s' * url.startswith('https')}webhdfs://{bound.address}"
            + (" (everyone who reaches it may do everything)" if _is_open(settings) else "")
        ),
        json=json,
    )


def _is_open(config: Config) -> bool:
    return config.webhdfs_insecure and not config.webhdfs_token and not config.webhdfs_tls_authority
