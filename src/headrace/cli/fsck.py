"""`headrace fsck`: a job in the node."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("fsck")(fsck)


def fsck(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Check every cached block against its checksum, and drop what is wrong."""
    from headrace.cli.job import run_job

    run_job("fsck", "/", socket=socket, cache=cache, as_json=json)
