"""Run a process of a benchmark: exchange lines with it, and end it with all its children."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.printable import printable

END_WITHIN_S = 60.0
"""Time limit for the end of a process, in seconds."""
POLL_MS = 50
"""Longest wait for a message, in milliseconds."""


class Process:
    """Run a process that writes lines of JSON and continues when it receives a reply."""

    def __init__(self, arguments: Sequence[str], *, inside: Sequence[str], log: str) -> None:
        """Start Python with `arguments`. inside: a command prefix that runs it somewhere else. log: file for its
        errors."""
        self.log = log
        with open(log, "wb") as out:
            self._process = subprocess.Popen(
                [*inside, sys.executable, "-P", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def read_message(self) -> dict[str, Any] | None:
        """Return the next message; None if there is none within POLL_MS. Raises HeadraceError if the process has
        ended."""
        assert self._process.stdout is not None
        poll = select.poll()  # select can't wait for descriptors above 1023
        poll.register(self._process.stdout, select.POLLIN)
        if not poll.poll(POLL_MS):
            return None
        line = self._process.stdout.readline()
        if not line:
            raise self.error()
        message: dict[str, Any] = json.loads(line)
        return message

    def answer(self, reply: str = "go") -> None:
        """Write a reply, so that the process continues."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{reply}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self.error() from error

    def failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def error(self) -> HeadraceError:
        """Return an error with the last lines of the process's log."""
        with open(self.log, "rb") as log:
            lines = log.read().decode(errors="replace").strip().splitlines()
        return HeadraceError(
            "a process of the benchmark ended", why=" | ".join(lines[-2:])[-600:] or "it printed nothing"
        )

    def end(self) -> None:
        """Wait for the process, and print its failed reads. Raises HeadraceError if it failed."""
        try:
            status = self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise DeadlineExceededError("a process of the benchmark does not end") from error
        if status != 0:
            raise self.error()
        with open(self.log, "rb") as log:  # it names failed reads
            for line in log.read().decode(errors="replace").splitlines():
                if line.startswith("accelerator "):
                    sys.stderr.write(f"headrace: {printable(line)}\n")

    def kill(self) -> None:
        """Kill the process with its loader's workers, which are in its session."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(END_WITHIN_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
