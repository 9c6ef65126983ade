"""Runs a job, of the node or of its cluster, and shows how far it is: load, free, pin, unpin, sync, persist, fsck."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from headrace.base.errors import CancelledByUserError, HeadraceError, NodeUnavailableError, UsageError
from headrace.cli.exit_codes import SOME_FAILED
from headrace.cli.render import print_json, say, warn
from headrace.config.sizes import show_size

if TYPE_CHECKING:
    from headrace.sdk.connection import Connection
    from headrace.wire.messages import JobStart, JobState

FAILED_SHOWN_MAX = 20
ID_LIMIT_S = 2.0


class ShowProgress(Protocol):
    """Where progress goes."""

    def __call__(self, state: JobState) -> None: ...


def register(app: typer.Typer) -> None:
    """The word `job` itself; what it does is in jobs.py."""
    from headrace.cli.jobs import register_group

    register_group(app)


def run_job(
    kind: str,
    path: str,
    *,
    socket: str | None,
    cache: str | None,
    as_json: bool,
    wanted: Mapping[str, str] | None = None,
    detach: bool = False,
) -> None:
    """Blocks until it is done; ^C cancels it. typer.Exit when files failed. wanted: options of the job. detach: its id
    is printed, and it goes on."""
    from headrace.cli.target import find_target
    from headrace.wire.messages import JobStart

    target = find_target(socket, cache, path)
    start = JobStart(kind=kind, path=target.path, options=dict(wanted or {}))
    if detach:
        _begin(start, target.socket, as_json=as_json)
    else:
        follow(start, target.socket, (kind, target.path), as_json=as_json)


def follow(start: JobStart, socket: str, name: tuple[str, str], *, as_json: bool) -> None:
    """Shows a job until it is over; ^C cancels it, of a cluster by an explicit word: a lost connection means nothing
    there. name: its kind and path. typer.Exit when files failed."""
    from headrace.cli.request import connection_to
    from headrace.wire.messages import JobState

    kind, path = name
    connection = connection_to(socket)
    began_s = time.monotonic()
    last: JobState | None = None
    try:
        with _progress(kind, wanted=not as_json and sys.stderr.isatty()) as show:
            for state in connection.stream(start):
                assert isinstance(state, JobState)
                last = state
                show(state)
    except KeyboardInterrupt:
        id = last.id if last is not None else _id_of(start, connection)
        raise _cancelled(f"{kind} {path}", id, socket) from None
    except NodeUnavailableError as error:
        if last is None or not last.id:
            raise
        hint = f"the job goes on: `headrace job show {last.id}` on any node"
        raise NodeUnavailableError(error.what, why=error.why, hint=hint) from None
    finally:
        connection.close()
    assert last is not None
    _show_result(kind, path, last, time.monotonic() - began_s, as_json=as_json)
    if last.state == "cancelled":
        raise CancelledByUserError(
            f"{kind} {path}", why=f"job {last.id} was cancelled; what is done stays done"
        )
    if last.failed_files:
        raise typer.Exit(SOME_FAILED)


def _begin(start: JobStart, socket: str, *, as_json: bool) -> None:
    from headrace.cli.request import connection_to
    from headrace.wire.messages import JobState

    connection = connection_to(socket)
    try:
        state = next(connection.stream(start))
    finally:
        connection.close()
    assert isinstance(state, JobState)
    if not state.id:
        raise UsageError(
            f"{start.kind} --detach",
            why="this node has no cluster, and its jobs end with their command",
            hint="leave --detach away",
        )
    if as_json:
        print_json({"kind": start.kind, "path": start.path, "took_s": 0.0, **_fields(state)})
    else:
        say(f"job {state.id}")


def _id_of(start: JobStart, connection: Connection) -> str:
    """Of a job that has not told its state yet; "" where it is of this node only, or the node does not answer."""
    from headrace.base.deadline import Deadline

    if start.kind == "watch":
        return start.path
    try:
        return str(getattr(connection.receive(deadline=Deadline.after(ID_LIMIT_S)), "id", ""))
    except HeadraceError:
        return ""


def _cancelled(what: str, id: str, socket: str) -> CancelledByUserError:
    """After ^C: the job is cancelled on return, where closing the connection is not enough."""
    if not id:
        return CancelledByUserError(what, why="cancelled; what is done stays done")
    from headrace.cli.request import connection_to
    from headrace.wire.messages import JobCancel

    connection = connection_to(socket)
    try:
        connection.ask(JobCancel(id=id))
    finally:
        connection.close()
    return CancelledByUserError(what, why="cancelled on all nodes; what is done stays done")


def _fields(state: JobState) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(state)
    del fields["type"]
    return fields


def _show_result(kind: str, path: str, state: JobState, took_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"kind": kind, "path": path, "took_s": round(took_s, 3), **_fields(state)})
        return
    what = "folders" if kind == "sync" else "files"
    size = f", {show_size(state.bytes_done)}" if kind != "sync" else ""
    rate = (
        f" ({show_size(state.bytes_done / max(took_s, 1e-3))}/s)"
        if kind in ("load", "fsck", "persist")
        else ""
    )
    failed = f", {state.failed_files} failed" if state.failed_files else ""
    say(f"{kind} {path}: {state.files_done} {what}{size} in {took_s:.1f} s{rate}{failed}")
    for name, reason in state.failed[:FAILED_SHOWN_MAX]:
        warn(f"{name}: {reason}")
    if len(state.failed) > FAILED_SHOWN_MAX:
        warn(f"… and {state.failed_files - FAILED_SHOWN_MAX} more; --json lists them")


@contextmanager
def _progress(kind: str, *, wanted: bool) -> Iterator[ShowProgress]:
    if not wanted:
        yield lambda _state: None
        return
    from rich import progress
    from rich.console import Console

    columns = (  # 80 columns hold them: no share in percent, which the bar shows
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeRemainingColumn(compact=True),
    )
    rate = RateMeter()
    with progress.Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task(kind, total=None, text="listing")

        def show(state: JobState) -> None:
            bytes_s = rate.seen(state.bytes_done, time.monotonic())
            total = None if state.listing or kind == "sync" else state.bytes_total
            bar.update(
                task, completed=state.bytes_done, total=total, text=progress_text(kind, state, bytes_s)
            )

        yield show


class RateMeter:
    """Bytes a second over the last seconds."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def seen(self, bytes_done: int, now_s: float) -> float:
        self._seen.append((now_s, bytes_done))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > self._window_s:
            self._seen.popleft()
        first_s, first_bytes = self._seen[0]
        return (bytes_done - first_bytes) / (now_s - first_s) if now_s > first_s else 0.0


def progress_text(kind: str, state: JobState, bytes_s: float) -> str:
    """Files, bytes and rate; "+" where more may be found."""
    if kind == "sync":
        return f"{state.files_done} folders"
    more = "+" if state.listing else ""
    return (
        f"{state.files_done}/{state.files_total}{more} files, "
        f"{show_size(state.bytes_done)}/{show_size(state.bytes_total)}{more}, {show_size(bytes_s)}/s"
    )
