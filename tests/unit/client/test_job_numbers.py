"""Processes are one job if they are in one process group, or in one container."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.client.access_reporter import AccessReporter
from headrace.client.connection import Connections
from headrace.client.job_numbers import job_numbers
from headrace.testing.waiting import LIMIT_S
from headrace.wire.messages import Touch


@contextmanager
def waiting(*, words: tuple[str, ...] = (), own_group: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that waits for its stdin to end."""
    command = [*words, "cat"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0 if own_group else None
    )
    try:
        yield process
    finally:
        process.communicate(timeout=LIMIT_S)


def test_processes_of_one_group_are_one_job() -> None:
    with waiting() as beside, waiting(own_group=True) as other:
        numbers = job_numbers({os.getpid(), beside.pid, other.pid})
        assert numbers[beside.pid] == numbers[os.getpid()] == os.getpgid(0)
        assert numbers[other.pid] == other.pid


def test_a_thread_is_of_the_job_of_its_process() -> None:
    numbers: list[dict[int, int]] = []
    thread = threading.Thread(target=lambda: numbers.append(job_numbers([threading.get_native_id()])))
    thread.start()
    thread.join()
    assert list(numbers[0].values()) == [os.getpgid(0)]


def test_unknown_and_ended_processes_have_no_job() -> None:
    with waiting(own_group=True) as process:
        pass
    assert job_numbers([0, process.pid, 1 << 31]) == {0: 0, process.pid: 0, 1 << 31: 0}


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root")
def test_all_processes_of_a_container_are_one_job() -> None:
    script = "import os, sys; os.setsid(); print(flush=True); sys.stdin.read()"
    words = ["unshare", "--pid", "--fork", sys.executable, "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            inner = int(children.read().split()[0])
        assert job_numbers([inner])[inner] == os.stat(f"/proc/{inner}/ns/pid").st_ino > 1 << 31
        process.communicate(timeout=LIMIT_S)


class _Connections(Connections):
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Touch] = []
        self.has_sent = threading.Event()

    def ask(self, request: object, **_: object) -> object:  # type: ignore[override]
        assert isinstance(request, Touch)
        self.sent.append(request)
        self.has_sent.set()
        return None


def test_opens_are_reported_with_the_job_of_their_process() -> None:
    with waiting(own_group=True) as other:
        connections = _Connections()
        reporter = AccessReporter(connections)
        reporter.touch(5, os.getpid())
        reporter.touch(6, other.pid)
        reporter.touch(7)
        reporter.close()
        assert connections.has_sent.wait(LIMIT_S)
    (touch,) = connections.sent
    assert (touch.ids, touch.streams) == ([5, 6, 7], (os.getpgid(0), other.pid, 0))


@pytest.mark.parametrize("is_job", [True, False])
def test_opens_of_no_known_process_have_no_streams(is_job: bool) -> None:
    connections = _Connections()
    reporter = AccessReporter(connections, is_job=is_job)
    reporter.touch(5)
    reporter.touch(6, 0 if is_job else os.getpid())
    reporter.close()
    assert connections.has_sent.wait(LIMIT_S)
    assert connections.sent[0].streams == ()
