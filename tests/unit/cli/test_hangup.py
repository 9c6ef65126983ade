"""A command that nohup(1) starts goes on when its terminal closes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from headrace.base.hangup import unless_ignored
from headrace.cli.process import MountOptions
from headrace.cli.state import RunState
from headrace.cli.supervise import Supervisor
from headrace.http.process import run_until_signal
from headrace.http.server import HttpServer

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave the handlers of this process as they were."""
    before = {number: signal.getsignal(number) for number in ENDS}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def supervisor(folder: Path) -> Supervisor:
    state = RunState(kind="fuse", pid=os.getpid(), socket="s", mountpoint="/mnt")
    mount = MountOptions("auto", allow_other=False, writable=False)
    return Supervisor(state, str(folder / "run"), config=None, mount=mount)


def test_only_a_hangup_that_is_ignored_is_left_alone(tmp_path: Path) -> None:
    assert unless_ignored(*ENDS) == list(ENDS)
    supervisor(tmp_path)
    assert signal.getsignal(signal.SIGHUP) not in (signal.SIG_IGN, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert unless_ignored(*ENDS) == [signal.SIGTERM, signal.SIGINT]
    supervisor(tmp_path)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_gateway_that_nohup_starts_goes_on() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    run_until_signal(create_autospec(HttpServer, instance=True))
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_a_gateway_that_is_ready_ends_in_order_by_a_signal() -> None:
    """Whoever waits for it may end it at once."""
    handlers: list[object] = []
    server = create_autospec(HttpServer, instance=True)
    run_until_signal(server, lambda: handlers.extend(map(signal.getsignal, ENDS)))
    assert len(handlers) == 3 and signal.SIG_DFL not in handlers
