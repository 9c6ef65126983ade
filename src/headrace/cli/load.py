"""`headrace load`: a job in the node."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("load")(load)


def load(
    path: options.PathOrAll = "/",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Fetch everything below PATH into the cache."""
    from headrace.cli.job import run_job

    run_job("load", path, socket=socket, cache=cache, as_json=json)
