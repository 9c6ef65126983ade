"""State files in the run folder: what runs on this host, so that `down` and the other commands find it.

One file a supervising process (`up`, `fuse`, `node run`), named by its pid, replaced as a whole, removed at its end.
One whose process was killed stays behind and says what to clean up.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket

import msgspec

from headrace.base.errors import StoreError
from headrace.base.peer_process import peer_of
from headrace.base.private_folder import make_private, private
from headrace.sdk.discovery import RunState, answers, began_at, read_states

__all__ = [
    "RunState",
    "answers",
    "began_at",
    "drop_socket",
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


def make_run_folder(folder: str) -> None:
    """StoreError when it can't be made."""
    try:
        make_private(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        raise StoreError(
            f"run folder {folder}", why=error.strerror or str(error), hint="set HEADRACE_RUN_FOLDER"
        ) from error


def write_state(folder: str, state: RunState) -> None:
    state.began = began_at(state.pid)
    path = _path(folder, state.pid)
    with open(path + ".new", "wb", opener=private) as out:
        out.write(msgspec.json.encode(state) + b"\n")
    os.rename(path + ".new", path)


def remove_state(folder: str, pid: int) -> None:
    try:
        os.unlink(_path(folder, pid))
    except FileNotFoundError:
        pass


def remove_replaced(folder: str, state: RunState) -> None:
    """What dead processes left of the mount, or of the node, that this one has now."""
    for one in read_states(folder):
        same = one.mountpoint == state.mountpoint if state.mountpoint else one.socket == state.socket
        if same and one.pid != state.pid and not one.alive():
            remove_state(folder, one.pid)


def lab_file(folder: str) -> str:
    """Where the lab that was started with this run folder has its state."""
    return os.path.join(folder, "lab", "lab.json")


def lab_states(folder: str) -> list[RunState]:
    """Of the nodes of a lab, each of which has a run folder of its own."""
    if not os.path.exists(lab_file(folder)):
        return []
    from headrace.lab import state as lab

    found = lab.read(lab_file(folder))
    numbers = found.nodes if found is not None else []
    return [
        one
        for number in numbers
        if found is not None
        for one in read_states(os.path.join(found.folder, f"node-{number}"))
        if one.alive() or answers(one.socket)
    ]


def drop_socket(socket_path: str) -> None:
    """A node that was killed leaves its socket behind, and what it read past its disks; one that lives keeps it."""
    if not answers(socket_path):
        try:
            os.unlink(socket_path)
        except FileNotFoundError:
            pass
        shutil.rmtree(os.path.splitext(socket_path)[0] + ".spill", ignore_errors=True)


def process_of(state: RunState) -> int:
    """A descriptor (pidfd_open(2)) of the process that wrote a state; -1: it has ended."""
    try:
        fd = os.pidfd_open(state.pid)
    except OSError:
        return -1
    if state.alive():
        return fd
    os.close(fd)
    return -1


def listener_of(socket_path: str) -> int:
    """A descriptor of the process of this user that listens there; -1 for none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(1)
        try:
            one.connect(socket_path)
        except OSError:
            return -1
        pid, uid, _ = peer_of(one)
        try:
            return os.pidfd_open(pid) if uid == os.geteuid() else -1
        except OSError:
            return -1


def send(process: int, number: int) -> None:
    """A signal to a process by its descriptor, which is closed; -1: to none."""
    if process < 0:
        return
    try:
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(process)


def end(process: int, within_s: float) -> bool:
    """Have a process end itself, by its descriptor, which is closed. False: it has not, in that time."""
    if process < 0:
        return True
    watch = os.dup(process)
    try:
        send(process, signal.SIGTERM)
        return bool(select.select([watch], [], [], within_s)[0])
    finally:
        os.close(watch)


def _path(folder: str, pid: int) -> str:
    return os.path.join(folder, f"{pid}.json")
