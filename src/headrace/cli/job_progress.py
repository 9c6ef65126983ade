"""Runs a job of the node or of its cluster and shows its progress: load, free, pin, unpin, sync, persist, fsck."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import typer

from headrace.base.errors import CancelledByUserError, HeadraceError, NodeUnavailableError, UsageError
from headrace.base.rate_meter import RateMeter
from headrace.base.sizes import show_size
from headrace.cli.exit_codes import SOME_FAILED
from headrace.cli.render import print_json, say, warn

if TYPE_CHECKING:
    from headrace.client.connection import Connection
    from headrace.vfs.remote.node import RemoteConnection
    from headrace.wire.messages import JobStart, JobState

FAILED_SHOWN_MAX = 20
"""Most failed files that are printed."""
ID_LIMIT_S = 2.0
"""Seconds to wait for the id of a job that ^C cancels before its first state arrived."""
TOO_LATE = {
    "seal": ("seal {name} was made before", "`headrace seal remove {name}` removes it"),
    "pull-seal": ("seal {name} was made before", "`headrace seal remove {name}` removes it"),
    "complete-seal": ("seal {name} was complete before", ""),
    "unseal": ("seal {name} was removed before", ""),
}
"""Kinds of jobs with a last step that ^C may miss, each with what holds then, and what to do."""


class ShowProgress(Protocol):
    """Displays the state of a running job."""

    def __call__(self, state: JobState) -> None: ...


def run_job(
    kind: str,
    path: str,
    *,
    socket: str | None,
    cache: str | None,
    as_json: bool,
    options: Mapping[str, str] | None = None,
    detach: bool = False,
) -> None:
    """Run a job and block until it has ended; ^C cancels it. detach: print its id, and return while it runs.

    Raises typer.Exit with SOME_FAILED when files failed.
    """
    from headrace.cli.target import find_target
    from headrace.wire.messages import JobStart

    target = find_target(socket, cache, path)
    start = JobStart(kind=kind, path=target.path, options=dict(options or {}))
    if detach:
        _begin(start, target.socket, as_json=as_json)
    else:
        subject = target.path if as_json else start.options.get("seal", target.path)
        follow(start, target.socket, (kind, subject), as_json=as_json)


def follow(start: JobStart, socket: str, name: tuple[str, str], *, as_json: bool) -> None:
    """Show a job until it has ended, and its result; ^C cancels it. name: its kind, and its path or seal.

    Raises typer.Exit with SOME_FAILED when files failed.
    """
    kind, path = name
    began_s = time.monotonic()
    last = watch(start, socket, name, is_shown=not as_json)
    show_result(kind, path, last, time.monotonic() - began_s, as_json=as_json)
    if last.state == "cancelled":
        raise CancelledByUserError(
            f"{kind} {path}", why=f"job {last.id} was cancelled; finished files stay as they are"
        )
    if last.failed_files:
        raise typer.Exit(SOME_FAILED)


def watch(start: JobStart, socket: str, name: tuple[str, str], *, is_shown: bool) -> JobState:
    """Show the progress of a job until it has ended, and return its last state; ^C cancels it.

    A cluster's job is cancelled by a request, because it survives the loss of this connection. A seal may be made just
    before the cancellation: CancelledByUserError says so.
    """
    from headrace.cli.request import connection_to
    from headrace.wire.messages import JobState

    kind, path = name
    connection = connection_to(socket)
    last: JobState | None = None
    interrupts: list[int] = []
    try:
        with (
            _progress(kind, is_shown=is_shown and sys.stderr.isatty()) as show,
            _cancelling(start.kind, connection, interrupts),
        ):
            for state in connection.stream(start):
                assert isinstance(state, JobState)
                last = state
                show(state)
    except KeyboardInterrupt:
        if interrupts:
            raise CancelledByUserError(
                f"{kind} {path}",
                why="the node has not said yet whether it is cancelled",
                hint="`headrace seal list` shows whether the seal is there",
            ) from None
        id = last.id if last is not None else _id_of(start, connection)
        raise _cancelled(f"{kind} {path}", id, socket) from None
    except NodeUnavailableError as error:
        if interrupts:  # the node closed the connection when the job had ended
            raise _cancelled(f"{kind} {path}", "", socket) from None
        if last is None or not last.id:
            raise
        hint = f"the job keeps running: `headrace job show {last.id}` on any node"
        raise NodeUnavailableError(error.what, why=error.why, hint=hint) from None
    finally:
        connection.close()
    assert last is not None
    if interrupts:
        why, hint = (text.format(name=_seal_of(start, last)) for text in TOO_LATE[start.kind])
        raise CancelledByUserError(f"{kind} {path}", why=why, hint=hint)
    return last


@contextmanager
def _cancelling(
    kind: str, connection: Connection | RemoteConnection, interrupts: list[int]
) -> Iterator[None]:
    """Have the first ^C cancel a job of TOO_LATE, and wait for its end: only the node knows whether it came too late.
    The second ^C is KeyboardInterrupt. interrupts: gets the signal."""
    from headrace.client.connection import Connection

    before = signal.getsignal(signal.SIGINT)
    if kind not in TOO_LATE or not isinstance(connection, Connection) or before is signal.SIG_IGN:
        yield
        return

    def cancel(number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        interrupts.append(number)
        connection.end_request()

    signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _seal_of(start: JobStart, state: JobState) -> str:
    """Return the seal of a job. The node chooses the version of a new one."""
    return next(iter(state.data), start.options["seal"])


def show_result(kind: str, path: str, state: JobState, took_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"kind": kind, "path": path, "took_s": round(took_s, 3), **_fields(state)})
        return
    unit = "directories" if kind == "sync" else "files"
    size = f", {show_size(state.bytes_done)}" if kind != "sync" else ""
    rate = (
        f" ({show_size(state.bytes_done / max(took_s, 1e-3))}/s)"
        if kind in ("load", "fsck", "persist")
        else ""
    )
    failed = f", {state.failed_files} failed" if state.failed_files else ""
    data = "".join(f" of {name}, id {id[:12]}" for name, id in state.data.items() if kind != "seal")
    say(f"{kind} {path}{data}: {state.files_done} {unit}{size} in {took_s:.1f} s{rate}{failed}")
    for name, reason in state.failed[:FAILED_SHOWN_MAX]:
        warn(f"{name}: {reason}")
    if len(state.failed) > FAILED_SHOWN_MAX:
        warn(f"… and {state.failed_files - FAILED_SHOWN_MAX} more; --json lists them")


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
            hint="omit --detach",
        )
    if as_json:
        print_json({"kind": start.kind, "path": start.path, "took_s": 0.0, **_fields(state)})
    else:
        say(f"job {state.id}")


def _id_of(start: JobStart, connection: Connection | RemoteConnection) -> str:
    """Return the id of a job before its first state arrived; "" if only this node runs it, or does not answer."""
    from headrace.base.deadline import Deadline

    if start.kind == "watch":
        return start.path
    try:
        return str(getattr(connection.receive(deadline=Deadline.after(ID_LIMIT_S)), "id", ""))
    except HeadraceError:
        return ""


def _cancelled(name: str, id: str, socket: str) -> CancelledByUserError:
    """Cancel a job after ^C, if closing the connection does not, and return the error to raise."""
    if not id:
        return CancelledByUserError(name, why="cancelled; finished files stay as they are")
    from headrace.cli.request import connection_to
    from headrace.wire.messages import JobCancel

    connection = connection_to(socket)
    try:
        connection.ask(JobCancel(id=id))
    finally:
        connection.close()
    return CancelledByUserError(name, why="cancelled on all nodes; finished files stay as they are")


def _fields(state: JobState) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(state)
    del fields["type"]
    return fields


@contextmanager
def _progress(kind: str, *, is_shown: bool) -> Iterator[ShowProgress]:
    if not is_shown:
        yield lambda _state: None
        return
    from rich import progress
    from rich.console import Console

    columns = (  # they fit 80 columns; the bar shows the percentage
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeRemainingColumn(compact=True),
    )
    rate, console = RateMeter(), Console(stderr=True)
    if console.is_dumb_terminal:  # Rich shows no bar there, and would print an empty line
        yield lambda _state: None
        return
    with progress.Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task(kind, total=None, text="listing")

        def show(state: JobState) -> None:
            bytes_s = rate.update(state.bytes_done, time.monotonic())
            total = None if state.listing or kind == "sync" else state.bytes_total
            bar.update(
                task, completed=state.bytes_done, total=total, text=progress_text(kind, state, bytes_s)
            )

        yield show


def progress_text(kind: str, state: JobState, bytes_s: float) -> str:
    """Return files, bytes and rate as text, with "+" while the node still lists more files."""
    if kind == "sync":
        return f"{state.files_done} directories"
    more = "+" if state.listing else ""
    return (
        f"{state.files_done}/{state.files_total}{more} files, "
        f"{show_size(state.bytes_done)}/{show_size(state.bytes_total)}{more}, {show_size(bytes_s)}/s"
    )
