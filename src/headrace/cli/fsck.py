"""Implements `headrace fsck`: a job of the node that compares cached bytes with their checksums."""

from __future__ import annotations

import typer

from headrace.cli import options


def register(app: typer.Typer) -> None:
    app.command("fsck")(fsck)


def fsck(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Compare all cached bytes with their checksums.

    The node deletes each block that does not match. The next read of the block fetches it again.
    """
    from headrace.cli.job_progress import run_job

    run_job("fsck", "/", socket=socket, cache=cache, as_json=json)
