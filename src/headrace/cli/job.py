"""Runs a job in the node and shows how far it is: load, free, pin, unpin, sync, fsck."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from headrace.base.errors import CancelledByUserError
from headrace.cli.exit_codes import SOME_FAILED
from headrace.cli.render import print_json, say, warn
from headrace.config.sizes import show_size

if TYPE_CHECKING:
    from headrace.wire.messages import JobState

FAILED_SHOWN_MAX = 20


class Shown(Protocol):
    """Where progress goes."""

    def __call__(self, state: JobState) -> None: ...


def run_job(kind: str, path: str, *, socket: str | None, cache: str | None, as_json: bool) -> None:
    """Blocks until it is done; ^C cancels it. typer.Exit when files failed."""
    from headrace.cli.target import find_target
    from headrace.sdk.connection import Connection
    from headrace.wire.messages import JobStart, JobState

    target = find_target(socket, cache, path)
    connection = Connection(target.socket, role="cli")
    began_s = time.monotonic()
    last: JobState | None = None
    try:
        with _progress(kind, wanted=not as_json and sys.stderr.isatty()) as show:
            for state in connection.stream(JobStart(kind=kind, path=target.path)):
                assert isinstance(state, JobState)
                last = state
                show(state)
    except KeyboardInterrupt:
        raise CancelledByUserError(
            f"{kind} {target.path}", why="cancelled; what is done stays done"
        ) from None
    finally:
        connection.close()
    assert last is not None
    _show_result(kind, target.path, last, time.monotonic() - began_s, as_json=as_json)
    if last.failed_files:
        raise typer.Exit(SOME_FAILED)


def _show_result(kind: str, path: str, state: JobState, took_s: float, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json({"kind": kind, "path": path, "took_s": round(took_s, 3), **msgspec.to_builtins(state)})
        return
    rate = state.bytes_done / took_s if took_s > 0 else 0.0
    say(
        f"{kind} {path}: {state.files_done} files, {show_size(state.bytes_done)} in {took_s:.1f} s"
        + (f" ({show_size(rate)}/s)" if state.bytes_done else "")
        + (f", {state.failed_files} failed" if state.failed_files else "")
    )
    for name, reason in state.failed[:FAILED_SHOWN_MAX]:
        warn(f"{name}: {reason}")
    if len(state.failed) > FAILED_SHOWN_MAX:
        warn(f"… and {state.failed_files - FAILED_SHOWN_MAX} more; --json lists them")


@contextmanager
def _progress(kind: str, *, wanted: bool) -> Iterator[Shown]:
    if not wanted:
        yield lambda _state: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TextColumn("{task.fields[files]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(kind, total=None, files="")

        def show(state: JobState) -> None:
            total = None if state.listing else state.bytes_total
            files = f"{state.files_done}/{state.files_total}{'…' if state.listing else ''} files"
            bar.update(task, completed=state.bytes_done, total=total, files=files)

        yield show
