"""Leaves alone a hangup that the user has the command ignore."""

from __future__ import annotations

import signal


def unless_ignored(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return the signals to handle: without SIGHUP if this process was started with it ignored, as by nohup(1). Then
    the command continues when its terminal closes."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in numbers if number != signal.SIGHUP or not is_ignored]
