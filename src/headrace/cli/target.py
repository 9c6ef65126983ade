"""Which node a command means, and which path of its namespace."""

from __future__ import annotations

import os
import socket as sockets
from dataclasses import dataclass

from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.cli.state import State, read_states
from headrace.config.load import load
from headrace.config.schema import socket_path_of


@dataclass(frozen=True, slots=True)
class Target:
    """socket: of the node. path: in its namespace."""

    socket: str
    path: str = "/"


def find_target(socket: str | None, cache: str | None, path: str | None = None) -> Target:
    """By --socket, --cache, a path below a mountpoint, or the one node that runs. NodeUnavailableError when there is
    none, UsageError when there are several."""
    run_folder = load().config.run_folder
    states = [state for state in read_states(run_folder) if state.alive() or answers(state.socket)]
    below = _below_mountpoint(path, states)
    if socket is not None:
        return Target(socket, below.path if below else _namespace_path(path))
    if cache is not None:
        at = socket_path_of(run_folder, cache.split(":", 1)[0])
        return Target(at, below.path if below else _namespace_path(path))
    return below or Target(_only_node(run_folder, states), _namespace_path(path))


def answers(socket_path: str) -> bool:
    """Somebody listens there."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as one:
        one.settimeout(1)
        try:
            one.connect(socket_path)
        except OSError:
            return False
    return True


def _below_mountpoint(path: str | None, states: list[State]) -> Target | None:
    """Without a look at the file system, which may be the one that hangs."""
    if path is None:
        return None
    whole = os.path.abspath(path)
    best: Target | None = None
    longest = 0
    for state in states:
        at = state.mountpoint
        if at and (whole == at or whole.startswith(at.rstrip("/") + "/")) and len(at) > longest:
            best, longest = Target(state.socket, "/" + whole[len(at) :].strip("/")), len(at)
    return best


def _namespace_path(path: str | None) -> str:
    return "/" if path is None else "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _only_node(run_folder: str, states: list[State]) -> str:
    known = {state.socket for state in states}
    if os.path.isdir(run_folder):
        known |= {os.path.join(run_folder, name) for name in os.listdir(run_folder) if name.endswith(".sock")}
    running = sorted(one for one in known if answers(one))
    if not running:
        raise NodeUnavailableError(
            "no node runs on this host",
            why=f"none listens in {run_folder}",
            hint="start one with `headrace up`",
        )
    if len(running) > 1:
        raise UsageError(
            "several nodes run on this host",
            why=", ".join(running),
            hint="choose by --socket PATH or --cache DIR",
        )
    return running[0]
