"""`headrace pin`: a job in the node."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("pin")(pin)


def pin(
    path: options.PathOrAll = "/",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Fetch everything below PATH and never evict it."""
    from headrace.cli.job import run_job

    run_job("pin", path, socket=socket, cache=cache, as_json=json)
