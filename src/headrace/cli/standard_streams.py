"""Gives a command its standard streams, also where the process that started it has closed some of them."""

from __future__ import annotations

import io
import os
import sys

OUTPUT = "standard output"


class _Output(io.FileIO):
    """Standard output whose errors name it. After an error, later output is dropped: neither later lines nor the
    interpreter, which writes at its end what is left, fail again."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            error.filename = OUTPUT
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
            raise


def prepare_standard_streams() -> None:
    """Open the streams that are closed on /dev/null: a file that the command opens must not get their numbers. Have
    errors of standard output name it, and characters that its encoding lacks escaped."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if sys.stdout is None or _is_plain_output():
        encoding = None if sys.stdout is None else sys.stdout.encoding
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "wb", closefd=False)),
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=os.isatty(1),
        )


def _is_plain_output() -> bool:
    """Return whether sys.stdout is as Python made it. A test may have replaced it."""
    try:
        return sys.stdout.fileno() == 1 and not isinstance(getattr(sys.stdout.buffer, "raw", None), _Output)
    except (AttributeError, OSError, ValueError):
        return False
