"""Find the nodes that run on this host, by the state files of the run directory and by the sockets that answer.

The command line writes the state files (`cli/state.py`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.base.private_folder import unfollowed
from headrace.base.proc_stat import began_at
from headrace.base.trusted_owner import is_trusted
from headrace.config.load import Loaded, load
from headrace.config.schema import socket_path_of

RESTART_S = 5.0
"""Seconds that a command or a program waits for a node that ended and is restarting."""


class RunState(msgspec.Struct, kw_only=True):
    """Describes a running command. kind: "up", "fuse", "s3", "webhdfs", "rest" or "node". s3, webhdfs, rest: where
    its gateway listens. A pid is 0 if there is no such process. began: the start time of `pid` by `began_at`, so that
    a later process with the same pid is not mistaken for it. credentials: files that its gateways created
    for clients of this host, by gateway."""

    kind: str
    pid: int
    socket: str
    cache: list[str] = []
    mountpoint: str = ""
    url: str = ""
    s3: str = ""
    rest: str = ""
    webhdfs: str = ""
    io: str = ""
    why: str = ""
    node_pid: int = 0
    fd_store_pid: int = 0
    session_pid: int = 0
    log: str = ""
    began: int = 0
    credentials: dict[str, str] = {}

    def alive(self) -> bool:
        """Return whether the process that wrote this still runs. The start time tells it from another process with
        its pid, and only this user can write the file."""
        return self.began != 0 and self.began == began_at(self.pid)


def find_node(*, socket: str | None = None, cache: str | None = None) -> str:
    """Return the socket of a node of this host: the named one, or that of the node that owns a cache directory. These
    nodes need not run. Without a socket and a cache, return the socket of the only node that runs. Raise
    NodeUnavailableError when none runs, UsageError when several do."""
    if socket is not None:
        return _trusted_socket(os.path.abspath(socket))
    loaded = load()
    run_folder = loaded.config.run_folder
    if cache is not None:
        return _trusted_socket(socket_path_of(run_folder, cache.split(":", 1)[0]))
    states = [state for state in read_states(run_folder) if state.alive() or answers(state.socket)]
    hint = "choose one with cache=DIR or HEADRACE_CACHE=DIR:SIZE"
    return select_node(running_sockets(run_folder, states), loaded, states, hint=hint)


def _trusted_socket(socket_path: str) -> str:
    """Return the socket path if its directory is trusted, or missing. Raise NodeUnavailableError when the directory
    belongs to another user, also for root, who could enter it."""
    directory = os.path.dirname(socket_path)
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if not is_trusted(os.stat(directory).st_uid):
            raise NodeUnavailableError(
                f"no node of this user listens at {socket_path}",
                why=f"{directory} belongs to another user",
                hint="start that node with `--allow-other`",
            )
    return socket_path


def configured_nodes() -> str:
    """Return the REST APIs of nodes of other hosts from the settings; "" if there are none."""
    return load().config.nodes


def read_states(directory: str) -> list[RunState]:
    """Return all state files that can be read, including those of dead processes."""
    states = []
    for name in _names_in(directory):
        if name.endswith(".json"):
            try:
                with open(os.path.join(directory, name), "rb", opener=unfollowed) as source:
                    states.append(decode_json(source.read(), RunState))
            except (OSError, msgspec.MsgspecError):
                continue  # removed meanwhile, or written by another version
    return states


def _names_in(directory: str) -> list[str]:
    """Return the names in a directory; none if it is missing or belongs to another user, also for root."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return sorted(os.listdir(fd)) if is_trusted(os.fstat(fd).st_uid) else []
    except OSError:
        return []
    finally:
        os.close(fd)


def answers(socket_path: str) -> bool:
    """Return whether a process listens on a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1)
        try:
            connection.connect(socket_path)
        except BlockingIOError:
            return True  # so many wait for the process that its queue is full
        except OSError:
            return False
    return True


def running_sockets(run_folder: str, states: list[RunState]) -> list[str]:
    """Return the sockets of the nodes of this run directory that answer."""
    paths = {state.socket for state in states}
    paths |= {os.path.join(run_folder, name) for name in _names_in(run_folder) if name.endswith(".sock")}
    return sorted(path for path in paths if answers(path))


def select_node(running: list[str], loaded: Loaded, states: list[RunState], *, hint: str) -> str:
    """Return the only running node, or of several the one whose cache the settings name. hint: how the user can
    choose. Raise NodeUnavailableError or UsageError."""
    config = loaded.config
    if not running:
        restarting = [state for state in states if state.kind == "up" and state.alive()]
        if restarting:
            if len(restarting) == 1 and _wait_for_restart(
                restarting[0].socket
            ):  # of several, the choice is open
                return restarting[0].socket
            raise NodeUnavailableError(
                f"the node of {restarting[0].mountpoint or restarting[0].socket} does not answer",
                why="it is restarting",
                hint=f"try again; see {restarting[0].log} for why it ended",
            )
        raise NodeUnavailableError(
            "no node runs on this host",
            why=f"no socket in {config.run_folder} answers",
            hint="start one with `headrace up`",
        )
    if len(running) > 1 and loaded.sources["cache"] != "default" and config.socket_path in running:
        return config.socket_path
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} nodes run on this host",
            why="; ".join(_describe(path, states) for path in running),
            hint=hint,
        )
    return running[0]


def _wait_for_restart(socket_path: str) -> bool:
    """Wait as long as a restart of a node usually takes; return whether the node answers."""
    deadline_s = time.monotonic() + RESTART_S
    while not answers(socket_path):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def _describe(socket: str, states: list[RunState]) -> str:
    node_states = [state for state in states if state.socket == socket]
    directories = [directory for state in node_states for directory in state.cache[:1]]
    mountpoints = [state.mountpoint for state in node_states if state.mountpoint]
    return " ".join(
        [
            f"--cache {directories[0]}" if directories else f"--socket {socket}",
            *([f"at {', '.join(mountpoints)}"] if mountpoints else []),
        ]
    )
