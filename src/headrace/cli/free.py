"""`headrace free`: a job of the node, or of its cluster."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("free")(free)


def free(
    path: options.PathOrAll = "/",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    detach: options.DetachJob = False,
    json: options.Json = False,
) -> None:
    """Drop clean cached bytes below PATH. The origin is not touched."""
    from headrace.cli.job import run_job

    run_job("free", path, socket=socket, cache=cache, as_json=json, detach=detach)
