"""Signals and the ready line: how a node process begins and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal

from headrace.base.errors import HeadraceError


def stop_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def say_ready(ready_fd: int | None, socket_path: str) -> None:
    """One JSON line to whoever started us."""
    _say(ready_fd, {"ready": True, "socket": socket_path, "pid": os.getpid()})


def say_failed(ready_fd: int | None, error: HeadraceError) -> None:
    _say(ready_fd, {"error": error.code, "what": error.what, "why": error.why, "hint": error.hint})


def _say(ready_fd: int | None, line: dict[str, object]) -> None:
    if ready_fd is not None:
        os.write(ready_fd, json.dumps(line).encode() + b"\n")
        os.close(ready_fd)
