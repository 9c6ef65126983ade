"""Implements `headrace sync`: a job of the node that compares listings with the origin."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("sync")(sync)


def sync(
    path: options.PathOrAll = "/",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Compare the names below PATH with the origin now.

    Readers then see changed objects at once. Otherwise they see them after `sync_interval_s`.
    """
    from headrace.cli.job_progress import run_job

    run_job("sync", path, socket=socket, cache=cache, as_json=json)
