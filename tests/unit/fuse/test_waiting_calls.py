"""A caller was killed if proc(5) shows a signal that ends a program, also while the program can't act on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.fuse import waiting_calls
from headrace.fuse.waiting_calls import Caller, WaitingCall, WaitingCalls, is_killed
from tests.integration.cli.host import wait_until

_PREPARED = {
    "as it began": "signal.signal(int(sys.argv[1]), signal.SIG_DFL)",  # a shell's background jobs ignore SIGQUIT
    "handler": "signal.signal(int(sys.argv[1]), lambda *_: None)",
    "ignored": "signal.signal(int(sys.argv[1]), signal.SIG_IGN)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [int(sys.argv[1])])",
}
_SCRIPT = "import os, signal, sys, time\n%s\nprint('ready', flush=True)\ntime.sleep(1000)"


class Stopped:
    """A process whose signals stay pending, SIGKILL excepted."""

    def __init__(self, prepared: str, number: int) -> None:
        command = [sys.executable, "-S", "-c", _SCRIPT % _PREPARED[prepared], str(number)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: b"(stopped)" in self._status())
        self.process.send_signal(signal.SIGWINCH)  # the next one is not promoted to SIGKILL at once
        self.process.send_signal(number)

    def _status(self) -> bytes:
        return Path(f"/proc/{self.process.pid}/status").read_bytes()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def stopped() -> Iterator[list[Stopped]]:
    processes: list[Stopped] = []
    yield processes
    for process in processes:
        process.close()


@pytest.mark.parametrize(
    "prepared, number, killed",
    [
        ("as it began", signal.SIGQUIT, True),
        ("as it began", signal.SIGCHLD, False),
        ("as it began", signal.SIGTSTP, False),
        ("handler", signal.SIGTERM, False),
        ("ignored", signal.SIGTERM, False),
        ("blocked", signal.SIGTERM, False),
    ],
)
def test_a_signal_that_ends_a_program_is_known(
    stopped: list[Stopped], prepared: str, number: int, *, killed: bool
) -> None:
    stopped.append(Stopped(prepared, number))
    assert is_killed(stopped[0].process.pid) is killed


def test_who_is_not_seen_is_not_killed() -> None:
    assert not is_killed(0)
    assert not is_killed(1 << 30)
    assert not is_killed(os.getpid())


def test_calls_of_one_user_that_hang_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They had all of them. Of a caller that is killed, also those end that had not begun."""
    killed: set[int] = set()
    monkeypatch.setattr(waiting_calls, "is_killed", killed.__contains__)
    monkeypatch.setattr(waiting_calls, "CHECK_INTERVAL_S", 0.05)
    over = threading.Event()
    hanging: list[int] = []
    answered: list[tuple[int, bool]] = []

    def run(call: WaitingCall) -> None:
        if call.caller.user == 1001 and not call.cancel.is_set():
            hanging.append(call.unique)
            over.wait(60)
        calls.end(call)
        answered.append((call.unique, call.cancel.is_set()))

    calls = WaitingCalls(run, ThreadPoolExecutor(1))
    heavy = range(3 * waiting_calls.THREADS)
    for unique in heavy:
        calls.submit(WaitingCall(1, unique, Caller(1001, 7 + unique % 2), lambda _: None))
    calls.submit(WaitingCall(1, 1000, Caller(1002, 9), lambda _: None))
    wait_until(lambda: (1000, False) in answered)
    assert len(answered) == 1
    wait_until(lambda: len(hanging) == waiting_calls.USER_THREADS_MAX)
    killed.add(8)
    waiting = (len(heavy) - waiting_calls.USER_THREADS_MAX) // 2
    wait_until(lambda: len(answered) == 1 + waiting)
    assert all(cancelled for _, cancelled in answered[1:])
    over.set()
    wait_until(lambda: len(answered) == 1 + len(heavy))
    assert len({unique for unique, _ in answered}) == len(answered)
