"""`headrace persist`: what was written on this node goes to its origins."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options

Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the origins have it; else only begin.")
]
Forget = Annotated[
    bool,
    typer.Option("--forget-conflicts", help="Don't report the conflicts that were there so far any more."),
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
    """Bring what was written below PATH to its origin now.

    It goes there by itself soon after it was written (mode back); this doesn't wait for that, and tells when all is
    there. Exit status 3 when something could not be persisted; it is tried again.
    """
    from headrace.cli.job import run_job

    kind = "persist" if wait else "persist-soon"
    wanted = {"forget_conflicts": "true"} if forget_conflicts else {}
    run_job(kind, path, socket=socket, cache=cache, as_json=json, wanted=wanted)
