"""An FD store adopts only a session that runs: another process may have its pid by now."""

from __future__ import annotations

import os
import socket

from headrace.fuse.fd_store import _pidfd_of


def child(control: socket.socket) -> int:
    """Return the pid of a process that has this end, and ends when the other end closes."""
    pid = os.fork()
    if pid == 0:
        control.recv(1)
        os._exit(0)
    return pid


def test_a_running_session_is_adopted_by_a_pidfd() -> None:
    ours, theirs = socket.socketpair()
    pid = child(ours)
    fd = _pidfd_of(pid, theirs)
    assert fd >= 0
    os.close(fd)
    ours.close()
    theirs.send(b"x")
    os.waitpid(pid, 0)
    theirs.close()


def test_a_pid_of_another_process_is_not_taken_for_the_session() -> None:
    ours, theirs = socket.socketpair()
    ours.close()  # the session has ended, and its pid is that of a process that runs
    descriptors = os.listdir("/proc/self/fd")
    assert _pidfd_of(os.getpid(), theirs) == -1
    assert os.listdir("/proc/self/fd") == descriptors
    theirs.close()


def test_an_ended_process_is_not_adopted() -> None:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert _pidfd_of(pid, theirs) == -1
    ours.close()
    theirs.close()
