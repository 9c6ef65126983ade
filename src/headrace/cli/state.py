"""Keeps state files in the run folder, by which `down` and other commands find what runs on this host.

Each supervising process (`up`, `fuse`, `node run`) has one file, named by its pid. The process replaces it as a whole,
and removes it at its end. The file of a killed process stays, and names what to clean up.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress

import msgspec

from headrace.base.errors import StoreError
from headrace.base.peer_process import peer_of
from headrace.base.private_folder import make_private, private
from headrace.base.proc_stat import began_at
from headrace.client.discovery import RunState, answers, read_states

__all__ = [
    "RunState",
    "answers",
    "drop_socket",
    "encoded_state",
    "end",
    "lab_file",
    "lab_states",
    "listener_of",
    "make_run_folder",
    "process_of",
    "read_states",
    "remove_replaced",
    "remove_state",
    "send",
    "write_state",
]


def make_run_folder(folder: str) -> bool:
    """Create the run folder, private to this user. Return whether this call created it. Raises StoreError when it
    can't."""
    try:
        is_created = make_private(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise StoreError(
            f"run folder {folder}", why=error.strerror or str(error), hint="set HEADRACE_RUN_FOLDER"
        ) from error
    return is_created


def encoded_state(state: RunState) -> bytes:
    """Return the content of a state file. Raises UnicodeEncodeError for a path that is not UTF-8."""
    return msgspec.json.encode(state) + b"\n"


def write_state(folder: str, state: RunState) -> None:
    """Replace the state file of a process as a whole. Raises OSError; the earlier file then stays."""
    state.began = began_at(state.pid)
    path, content = _path(folder, state.pid), encoded_state(state)
    try:
        with open(path + ".new", "wb", opener=private) as out:
            out.write(content)
        os.rename(path + ".new", path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path + ".new")
        error.filename = path  # an error of a write has none
        raise


def remove_state(folder: str, pid: int) -> None:
    """Remove the state file of a process, if there is one."""
    try:
        os.unlink(_path(folder, pid))
    except FileNotFoundError:
        pass


def remove_replaced(folder: str, state: RunState) -> None:
    """Remove the state files that dead processes left for the mount or node of this state, and those that they did not
    finish."""
    for other in read_states(folder):
        same = other.mountpoint == state.mountpoint if state.mountpoint else other.socket == state.socket
        if same and other.pid != state.pid and not other.alive():
            remove_state(folder, other.pid)
    for name in os.listdir(folder):
        pid = name.removesuffix(".json.new")
        if pid != name and pid.isdecimal() and not began_at(int(pid)):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def lab_file(folder: str) -> str:
    """Return the path of the state of the lab that was started with this run folder."""
    return os.path.join(folder, "lab", "lab.json")


def lab_states(folder: str) -> list[RunState]:
    """Return the states of a lab's running nodes, each of which has a run folder of its own."""
    if not os.path.exists(lab_file(folder)):
        return []
    from headrace.lab import state as lab

    record = lab.read(lab_file(folder))
    if record is None:
        return []
    return [
        state
        for number in record.nodes
        for state in read_states(os.path.join(record.folder, f"node-{number}"))
        if state.alive() or answers(state.socket)
    ]


def drop_socket(socket_path: str) -> None:
    """Remove the socket and the spill of a node that was killed; those of a live node stay."""
    from headrace.config.schema import spill_of
    from headrace.store.spill import remove_remains

    if not answers(socket_path):
        try:
            os.unlink(socket_path)
        except FileNotFoundError:
            pass
        remove_remains(*spill_of(socket_path))


def process_of(state: RunState) -> int:
    """Return a pidfd (pidfd_open(2)) of the process that wrote a state; -1 if it has ended."""
    try:
        fd = os.pidfd_open(state.pid)
    except OSError:
        return -1
    if state.alive():
        return fd
    os.close(fd)
    return -1


def listener_of(socket_path: str) -> int:
    """Return a pidfd of the process of this user that listens at a socket; -1 for none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        try:
            connection.connect(socket_path)
        except OSError:
            return -1
        pid, uid, _ = peer_of(connection)
        try:
            return os.pidfd_open(pid) if uid == os.geteuid() else -1
        except OSError:
            return -1


def send(process: int, number: int) -> None:
    """Send a signal to a process by its pidfd, and close the pidfd. Does nothing for -1."""
    if process < 0:
        return
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)


def end(process: int, within_s: float) -> bool:
    """Send SIGTERM to a process by its pidfd, and close the pidfd. A process that its user has stopped, as by ^Z,
    continues and ends, too. Returns False if it did not end within the time."""
    if process < 0:
        return True
    watch = os.dup(process)
    try:
        send(process, signal.SIGTERM)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(watch, signal.SIGCONT)
        return bool(select.select([watch], [], [], within_s)[0])
    finally:
        os.close(watch)


def _path(folder: str, pid: int) -> str:
    return os.path.join(folder, f"{pid}.json")


def may_be_served(run_folder: str, mountpoint: str) -> bool:
    """Return whether a process serves a mount; True if it was made with another run folder, and can't be known."""
    from headrace.fuse.servers import Servers

    if all(state.mountpoint != mountpoint for state in read_states(run_folder)):
        return True
    servers = Servers.open(run_folder, mountpoint)
    try:
        return servers.any()
    finally:
        servers.close()
