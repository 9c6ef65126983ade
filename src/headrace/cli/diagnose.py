"""Implements `headrace diagnose`: watches a training job from outside, and reports why its GPUs wait."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import HeadraceError, PathNotFoundError, UsageError
from headrace.cli import options
from headrace.cli.exit_codes import not_started_status, why_not_started
from headrace.cli.render import print_json, say, warn

if TYPE_CHECKING:
    from headrace.diagnose.sampler import Sampler

PID_SECONDS, COMMAND_SECONDS = 30.0, 300.0
"""Seconds to watch a running job by default, and a job that the command starts."""
NO_TIMELINE = 1
"""Status with --pid if the timeline could not be written at the end."""
KILLED_BASE = 128
"""Base to which a shell adds the signal that ended a program."""


def register(app: typer.Typer) -> None:
    app.command("diagnose", context_settings={"allow_interspersed_args": False})(diagnose)


def diagnose(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Command that starts the job to watch; put `--` before it."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option("--pid", metavar="PID", help="Process id of a running job to watch.", min=1)
    ] = None,
    seconds: Annotated[
        float | None,
        options.define(
            "--seconds",
            "S",
            "Seconds to watch.",
            default=f"{PID_SECONDS:.0f} with --pid, else {COMMAND_SECONDS:.0f}",
        ),
    ] = None,
    rate: Annotated[
        int,
        typer.Option(
            "--rate", metavar="HZ", help="Samples a second; higher rates add overhead.", min=1, max=200
        ),
    ] = 10,
    timeline: Annotated[
        str | None, options.define("--timeline", "FILE", "Write a timeline for ui.perfetto.dev to this file.")
    ] = None,
    json: options.Json = False,
) -> int:
    """Watch a training job and rank the reasons why GPUs wait.

    The command samples the job and its loader's workers from outside, without a change to their code
    (docs/diagnose.md). It prints the report when the job ends, when the time to watch is over, or at ^C. After the time
    to watch, the job keeps running; ^C also reaches a job that was started here. The exit status is the job's own, 127
    or 126 if it can't be started. With --pid it is 0, or 1 if the timeline can't be written at the end.
    """
    from headrace.diagnose.sampler import Sampler

    if (pid is None) == (not command):
        raise UsageError(
            "diagnose", why="give either a command or --pid", hint="headrace diagnose -- python train.py"
        )
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g}", why="the time to watch is no finite number above 0")
    _check_timeline(timeline)
    if pid is not None:
        if not os.path.exists(f"/proc/{pid}/stat"):
            raise PathNotFoundError(
                f"--pid {pid}", why="no process has this id", hint="for example: pgrep -f train.py"
            )
        sampler = Sampler(pid, _status_of, rate)
        _watch(sampler, seconds or PID_SECONDS, lambda: False)
        return 0 if _report(sampler, timeline, as_json=json) else NO_TIMELINE
    assert command is not None
    try:
        job = subprocess.Popen(
            command, stdout=sys.stderr.fileno() if json else None
        )  # stdout is the report's
    except OSError as error:
        warn(f"diagnose: {command[0]}: {why_not_started(error, command[0])}")
        return not_started_status(error)
    signal.signal(signal.SIGTERM, lambda *_: job.terminate())  # a scheduler's SIGTERM is meant for the job
    sampler = Sampler(job.pid, _status_of, rate)
    _watch(sampler, seconds or COMMAND_SECONDS, lambda: job.poll() is not None)
    try:
        _report(sampler, timeline, as_json=json)
    except BrokenPipeError:
        pass  # the job runs on, and its status counts
    except OSError as error:
        warn(f"the report can't be printed: {error.strerror}")
    return _status(_end(job))


def _watch(sampler: Sampler, limit_s: float, ended: Any) -> None:
    try:
        sampler.run(ended, limit_s)
    except KeyboardInterrupt:
        warn("interrupted by ^C: the report covers the time until now")


def _end(job: subprocess.Popen[bytes]) -> int:
    """Wait for the job, and pass ^C on. The terminal sends it SIGINT as well."""
    while True:
        try:
            return job.wait()
        except KeyboardInterrupt:
            job.send_signal(signal.SIGINT)


def _status(returned: int) -> int:
    return KILLED_BASE - returned if returned < 0 else returned


def _check_timeline(path: str | None) -> None:
    """Raise UsageError for a path that can't be written, before there is anything to lose."""
    from headrace.diagnose.timeline import check_timeline

    if path is None:
        return
    try:
        check_timeline(path)
    except OSError as error:
        raise UsageError(f"--timeline {path}", why=_why_not_written(error)) from error


def _why_not_written(error: OSError) -> str:
    return f"the file can't be written: {(error.strerror or str(error)).lower()}"


def _report(sampler: Sampler, timeline: str | None, *, as_json: bool) -> bool:
    """Print the report and write the timeline. Return whether it was written, if one was wanted."""
    from headrace.diagnose.attribute import attribute
    from headrace.diagnose.report import lines_of, value_of
    from headrace.diagnose.timeline import write_timeline

    recording = sampler.recording()
    diagnosis = attribute(recording)
    is_written = True
    if timeline is not None:
        try:
            write_timeline(recording, timeline)
        except OSError as error:
            is_written = False
            warn(f"--timeline {timeline}: {_why_not_written(error)}")
    if as_json:
        print_json(value_of(diagnosis))
    else:
        for line in lines_of(diagnosis):
            say(line)
    return is_written


def _status_of(mountpoint: str) -> dict[str, Any] | None:
    """Return the status of the node of a mountpoint, "" for the only node; None when it does not answer."""
    from headrace.cli.lowered import owner_of
    from headrace.cli.target import find_target
    from headrace.client.connection import Connection
    from headrace.config.load import load
    from headrace.wire.messages import Report, StatusAsk

    def ask() -> dict[str, Any] | None:
        connection = Connection(find_target(None, None, mountpoint or None).socket, role="cli")
        try:
            answer = connection.ask(StatusAsk())
        finally:
            connection.close()
        return answer.status if isinstance(answer, Report) else None

    try:
        owner = owner_of(load().config.run_folder)
        status: dict[str, Any] | None = ask() if owner is None else owner.result_of(ask)
    except HeadraceError:
        return None
    return status
