"""Implements `up --detach`: runs the same command as a process that outlives this one once it is ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from headrace.base.errors import CancelledByUserError, UsageError
from headrace.base.hangup import end_as_by_interrupt
from headrace.base.interpreter import module_command
from headrace.cli.render import print_json, say


def run_detached(*, as_json: bool) -> None:
    """Start the command, and return when it is ready.

    Raises SystemExit with its status when it fails, after its error line was printed.
    """
    words = [word for word in sys.argv[1:] if word not in ("--detach", "--json")]
    if len(words) == len(sys.argv[1:]):
        raise UsageError("--detach", why="the option is abbreviated", hint="write --detach in full")
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            module_command("headrace", *words, "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            end_as_by_interrupt()
            line = process.stdout.readline()
        except KeyboardInterrupt:
            process.terminate()  # it cleans up after itself
            process.wait()
            raise CancelledByUserError("headrace up", why="stopped before it was ready") from None
        if line:
            _show(json.loads(line), process.pid, as_json=as_json)
            return
        status = process.wait()
        errors.seek(0)
        os.write(2, errors.read())
    raise SystemExit(status)


def _show(ready: dict[str, Any], pid: int, *, as_json: bool) -> None:
    if as_json:
        print_json(ready)
        return
    say(f"ready in {ready['ready_s']:.2f} s: {ready['mountpoint'] or ready['socket']} (pid {pid})")
    if ready.get("io"):
        say(f"io: {ready['io']}" + (f" ({ready['why']})" if ready.get("why") else ""))
