"""The signals that end a command. A hangup that the user has it ignore is left alone."""

from __future__ import annotations

import signal
from types import FrameType


def unless_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return the signals to handle: without SIGHUP if this process was started with it ignored, as by nohup(1). Then
    the command continues when its terminal closes."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if number != signal.SIGHUP or not is_ignored]


def end_as_by_interrupt() -> None:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt as ^C does, so that the command ends what it began. A SIGHUP that
    is ignored stays so."""
    for number in unless_ignored(signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
