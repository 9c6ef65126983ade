"""Implements `headrace pin`: a job of the node, or of its cluster, that keeps files in the cache."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("pin")(pin)


def pin(
    path: options.PathOrAll = "/",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    replicas: options.Replicas = None,
    priority: options.JobPriority = "normal",
    verify: options.Verify = False,
    detach: options.DetachJob = False,
    json: options.Json = False,
) -> None:
    """Fetch all files below PATH and never evict them."""
    from headrace.cli.job_progress import run_job

    job = options.job_options(replicas, priority, verify=verify)
    run_job("pin", path, socket=socket, cache=cache, as_json=json, options=job, detach=detach)
