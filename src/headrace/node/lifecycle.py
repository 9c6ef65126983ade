"""Handle signals and report readiness: how a node process starts and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal

from headrace.base.errors import HeadraceError
from headrace.base.hangup import unless_ignored


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set the event at SIGTERM, SIGINT, and SIGHUP unless it is ignored: a terminal that closes sends it."""
    loop = asyncio.get_running_loop()
    for number in unless_ignored(signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)


def report_ready(ready_fd: int | None, socket_path: str) -> bool:
    """Write one JSON line for the process that started this one. Return False if that process has ended."""
    return _report(ready_fd, {"ready": True, "socket": socket_path, "pid": os.getpid()})


def report_failed(ready_fd: int | None, error: HeadraceError) -> None:
    _report(ready_fd, error.as_report())


def _report(ready_fd: int | None, line: dict[str, object]) -> bool:
    if ready_fd is None:
        return True
    try:
        os.write(ready_fd, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        return False
    finally:
        os.close(ready_fd)
    return True
