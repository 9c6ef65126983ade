"""Implements `headrace persist`: uploads this node's unpersisted changes to their origins."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options

Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="Wait until the origins have all changes (the default), or return at once."
    ),
]
Forget = Annotated[
    bool, typer.Option("--forget-conflicts", help="Remove the conflicts so far from `headrace status`.")
]


def register(app: typer.Typer) -> None:
    app.command("persist")(persist)


def persist(
    path: options.PathOrAll = "/",
    wait: Wait = True,
    forget_conflicts: Forget = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Persist the changes below PATH to their origins now.

    In mode back, the node persists each change by itself after `persist_delay_s`. This command skips that delay, and
    returns when the origins have all changes. The exit status is 50 when some files failed; the node retries them.
    """
    from headrace.cli.job_progress import run_job

    kind = "persist" if wait else "persist-soon"
    job = {"forget_conflicts": "true"} if forget_conflicts else {}
    run_job(kind, path, socket=socket, cache=cache, as_json=json, options=job)
