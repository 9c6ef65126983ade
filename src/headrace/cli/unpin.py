"""Implements `headrace unpin`: a job of the node, or of its cluster, that makes files evictable again."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("unpin")(unpin)


def unpin(
    path: options.PathOrAll = "/",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    detach: options.DetachJob = False,
    json: options.Json = False,
) -> None:
    """Allow pinned files below PATH to be evicted again."""
    from headrace.cli.job_progress import run_job

    run_job("unpin", path, socket=socket, cache=cache, as_json=json, detach=detach)
