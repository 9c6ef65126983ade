"""Implements `headrace free`: a job of the node, or of its cluster, that deletes cached copies."""

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
    """Delete clean cached bytes below PATH, also of pinned files.

    The origin keeps its objects.
    """
    from headrace.cli.job_progress import run_job

    run_job("free", path, socket=socket, cache=cache, as_json=json, detach=detach)
