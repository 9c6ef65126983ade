"""`headrace fsck`: a job in the node."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("fsck")(fsck)


def fsck(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Check all cached bytes.

    Every block is read and held against its checksum; what is wrong is dropped, and fetched again when it is read.
    """
    from headrace.cli.job import run_job

    run_job("fsck", "/", socket=socket, cache=cache, as_json=json)
