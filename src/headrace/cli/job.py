"""Implements `headrace job list | show | cancel | retry` for the cluster's jobs, from any of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.sizes import show_size
from headrace.cli import options
from headrace.cli.render import print_json, print_lines, print_rows, say

if TYPE_CHECKING:
    from headrace.wire.messages import JobRow

Follow = Annotated[
    bool, typer.Option("--follow", help="Show progress until the job ends; ^C cancels the job.")
]
DetachRetry = Annotated[bool, typer.Option("--detach", help="Return without waiting for the job to end.")]
FAILED_SHOWN_MAX = 20
"""Most failed files that are printed."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="List, follow, cancel and retry jobs of the cluster.", no_args_is_help=True)
    group.command("list")(list_jobs)
    group.command("show")(show)
    group.command("cancel")(cancel)
    group.command("retry")(retry)
    app.add_typer(group, name="job")


def list_jobs(
    socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False
) -> None:
    """Print the running jobs and the last 100 that ended."""
    import msgspec

    rows = _rows("", socket, cache)
    if json:
        print_json([msgspec.to_builtins(row) for row in rows])
        return
    print_rows([_columns(row) for row in rows], as_json=False, right=("files", "bytes", "left"))


def show(
    id: options.JobId,
    follow: Follow = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the progress of a job and the files that failed."""
    import msgspec

    if follow:
        _follow(id, socket, cache, as_json=json)
        return
    (row,) = _rows(id, socket, cache)
    if json:
        print_json(msgspec.to_builtins(row))
        return
    columns = _columns(row)
    columns["tried"] = f"{row.attempt} times" if row.attempt > 1 else ""
    columns["took"] = f"{row.took_s} s"
    columns["options"] = ", ".join(f"{name}={value}" for name, value in row.options.items())
    columns["data"] = ", ".join(f"{name}, id {id[:12]}" for name, id in row.data.items())
    columns["nodes"] = ", ".join(f"{node}: {files}" for node, files in row.files_by_node.items())
    lines = [(name, text) for name, text in columns.items() if text]
    lines += [("failed", f"{path}: {reason}") for path, reason in row.failed[:FAILED_SHOWN_MAX]]
    print_lines(lines)
    if row.failed_files > FAILED_SHOWN_MAX:
        say(f"… {row.failed_files} failed in all; --json names {len(row.failed)}")


def cancel(
    id: options.JobId,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Cancel a job on all nodes.

    Files that it has finished stay as they are.
    """
    from headrace.cli.request import ask
    from headrace.wire.messages import JobCancel

    ask(JobCancel(id=id), socket, cache)
    print_json({"id": id}) if json else say(f"job {id}: cancelled, if it had not ended")


def retry(
    id: options.JobId,
    detach: DetachRetry = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Run a job again for the files that failed.

    A cancelled job runs again for all its files.
    """
    from headrace.cli.request import ask
    from headrace.wire.messages import JobRetry

    ask(JobRetry(id=id), socket, cache)
    if not detach:
        _follow(id, socket, cache, as_json=json)
    elif json:
        print_json({"id": id})
    else:
        say(f"job {id}")


def _follow(id: str, socket: str | None, cache: str | None, *, as_json: bool) -> None:
    from headrace.cli.job_progress import follow
    from headrace.cli.target import find_target
    from headrace.wire.messages import JobStart

    (row,) = _rows(id, socket, cache)
    start = JobStart(kind="watch", path=id)
    follow(start, find_target(socket, cache).socket, (row.kind, row.path), as_json=as_json)


def _rows(id: str, socket: str | None, cache: str | None) -> list[JobRow]:
    from headrace.cli.request import ask
    from headrace.wire.messages import JobList, JobRows

    answer = ask(JobList(id=id), socket, cache)
    assert isinstance(answer, JobRows)
    return answer.rows


def _columns(row: JobRow) -> dict[str, str]:
    more = "+" if row.listing else ""
    failed = f", {row.failed_files} failed" if row.failed_files else ""
    rate = f", {show_size(row.bytes_s)}/s" if row.bytes_s else ""
    return {
        "id": row.id,
        "kind": row.kind,
        "path": row.path,
        "state": row.state,
        "files": f"{row.files_done}/{row.files_total}{more}{failed}",
        "bytes": f"{show_size(row.bytes_done)}/{show_size(row.bytes_total)}{more}{rate}",
        "left": "" if row.eta_s is None else f"{row.eta_s:.0f} s",
        "node": row.node,
    }
