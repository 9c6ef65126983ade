"""Implements `headrace s3`: serves a running node's namespace to S3 clients, in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.gateways import serve_here

DEFAULT_ADDRESS = "127.0.0.1:9000"


def register(app: typer.Typer) -> None:
    app.command("s3")(s3)


def s3(
    address: Annotated[
        str | None,
        options.define(
            "--address", "HOST:PORT", "Address where the gateway listens.", default=DEFAULT_ADDRESS
        ),
    ] = None,
    credentials: Annotated[
        str | None,
        options.define(
            "--credentials",
            "FILE",
            "File of the access keys that may sign requests, in the format of ~/.aws/credentials.",
            default="a key that the gateway creates",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Accept unsigned requests, and listen without TLS beyond loopback."),
    ] = False,
    user: options.User = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Serve the namespace of a running node to S3 clients.

    A bucket is a directory at the top of the namespace, such as the path of a mount; keys are the paths below it. The
    gateway runs until ^C, SIGTERM or `headrace down --all`. Without --credentials (or the setting s3_credentials), it
    creates an access key at its first start. The key is in a file of the cache directory that only its user can read.
    It then prints the shell line that sources this file.
    """
    serve_here(
        "s3",
        {"s3_address": address, "s3_credentials": credentials, "s3_insecure": insecure or None, "user": user},
        file=config,
        socket=socket,
        cache=cache,
        default_address=DEFAULT_ADDRESS,
        ready=lambda settings, url, bound: (
            f"ready: {url}"
            + ("" if settings.s3_credentials or bound.credentials else " (unsigned requests are accepted)")
        ),
        json=json,
    )
