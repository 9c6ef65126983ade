"""Implements `headrace load`, `free`, `pin` and `unpin`: jobs of the node, or of its cluster, over the files below a
path."""

from __future__ import annotations

from collections.abc import Callable

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("load", help="Fetch all files below PATH into the cache.")(_fetching("load"))
    app.command(
        "free",
        help="Delete clean cached bytes below PATH, also of pinned files.\n\nThe origin keeps its objects.",
    )(_local("free"))
    app.command("pin", help="Fetch all files below PATH and never evict them.")(_fetching("pin"))
    app.command("unpin", help="Allow pinned files below PATH to be evicted again.")(_local("unpin"))


def _fetching(kind: str) -> Callable[..., None]:
    """Return the command of a job that fetches missing files."""

    def command(
        path: options.PathOrAll = "/",
        socket: options.Socket = None,
        cache: options.CacheOf = None,
        replicas: options.Replicas = None,
        priority: options.JobPriority = "normal",
        verify: options.Verify = False,
        detach: options.DetachJob = False,
        json: options.Json = False,
    ) -> None:
        from headrace.cli.job_progress import run_job

        job = options.job_options(replicas, priority, verify=verify)
        run_job(kind, path, socket=socket, cache=cache, as_json=json, options=job, detach=detach)

    return command


def _local(kind: str) -> Callable[..., None]:
    """Return the command of a job over the files that are cached."""

    def command(
        path: options.PathOrAll = "/",
        socket: options.Socket = None,
        cache: options.CacheOf = None,
        detach: options.DetachJob = False,
        json: options.Json = False,
    ) -> None:
        from headrace.cli.job_progress import run_job

        run_job(kind, path, socket=socket, cache=cache, as_json=json, detach=detach)

    return command
