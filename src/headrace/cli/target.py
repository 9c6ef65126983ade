"""Which node a command means, and which path of its namespace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, UsageError
from headrace.cli.lowered import become_owner
from headrace.cli.state import RunState, answers, lab_states, read_states
from headrace.config.load import load
from headrace.config.schema import socket_path_of
from headrace.sdk.discovery import running_sockets, select_node

if TYPE_CHECKING:
    from headrace.wire.messages import MountRow


CHOOSE = "choose by a PATH below a mountpoint, or --cache DIR"


@dataclass(frozen=True, slots=True)
class Target:
    """socket: of the node, or REST APIs of nodes of other hosts. path: in its namespace."""

    socket: str
    path: str = "/"


def find_target(socket: str | None, cache: str | None, path: str | None = None) -> Target:
    """The node is that of --socket or --cache, else of the mountpoint that PATH is below, else the one whose origin
    PATH is in, else the only one; where none runs here, those of the setting `nodes`. --socket may name REST APIs, too.
    NodeUnavailableError when there is none, UsageError when there are several. A process of root's becomes the user of
    such a node (`lowered`)."""
    if socket is not None and ("://" in socket or socket.startswith("unix:")):
        return Target(socket, _namespace_path(path))
    loaded = load()
    run_folder = loaded.config.run_folder
    become_owner(run_folder if socket is None else os.path.dirname(os.path.abspath(socket)))
    states = [state for state in read_states(run_folder) if state.alive() or answers(state.socket)]
    below = _below_mountpoint(path, [*states, *lab_states(run_folder)])
    chosen = socket
    if chosen is None and cache is not None:
        chosen = socket_path_of(run_folder, cache.split(":", 1)[0])
    if below is not None:
        return below if chosen is None else Target(chosen, below.path)
    running = [chosen] if chosen is not None else running_sockets(run_folder, states)
    within = _within_origin(path, running)
    if within is not None:
        return within
    if path is not None and "://" in path:
        raise UsageError(path, why="no node that runs here has this origin", hint="see `headrace mount list`")
    if not running and loaded.config.nodes:
        return Target(loaded.config.nodes, _namespace_path(path))
    return Target(select_node(running, loaded, states, hint=CHOOSE), _namespace_path(path))


def _below_mountpoint(path: str | None, states: list[RunState]) -> Target | None:
    """Without a look at the file system, which may be the one that hangs."""
    if path is None or "://" in path:
        return None
    whole = os.path.abspath(path)
    best: Target | None = None
    longest = 0
    for state in states:
        at = state.mountpoint
        if at and (whole == at or whole.startswith(at.rstrip("/") + "/")) and len(at) > longest:
            best, longest = Target(state.socket, "/" + whole[len(at) :].strip("/")), len(at)
    return best


def _within_origin(path: str | None, running: list[str]) -> Target | None:
    """A URL, or an absolute path of a folder that is an origin. Of several nodes that have it, none."""
    if path is None or not ("://" in path or path.startswith("/")):
        return None
    url = (path if "://" in path else f"file://{os.path.normpath(path)}").rstrip("/")
    found = []
    for socket in running:
        for row in _mount_rows(socket):
            if url == row.url or url.startswith(row.url.rstrip("/") + "/"):
                inner = url[len(row.url.rstrip("/")) :].strip("/")
                found.append(
                    (len(row.url), Target(socket, f"{row.path.rstrip('/')}/{inner}".rstrip("/") or "/"))
                )
    longest = max((length for length, _ in found), default=0)
    best = [target for length, target in found if length == longest]
    if len({target.socket for target in best}) > 1:
        raise UsageError(
            path,
            why="several nodes on this host have this origin",
            hint="choose by --cache DIR or --socket PATH",
        )
    return best[0] if best else None


def _mount_rows(socket: str) -> list[MountRow]:
    from headrace.sdk.connection import Connection
    from headrace.wire.messages import MountList, Mounts

    try:
        connection = Connection(socket, role="cli")
    except HeadraceError:
        return []
    try:
        answer = connection.ask(MountList())
    finally:
        connection.close()
    return answer.rows if isinstance(answer, Mounts) else []


def _namespace_path(path: str | None) -> str:
    return "/" if path is None else "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
