"""Selects the node that a command uses, and translates PATH to its namespace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.namespace_path import is_at_or_below
from headrace.cli import options
from headrace.cli.lowered import become_owner
from headrace.cli.state import RunState, answers, lab_states, read_states
from headrace.client.discovery import running_sockets, select_node
from headrace.config.load import load
from headrace.config.schema import socket_path_of
from headrace.config.secret_options import without_passwords

if TYPE_CHECKING:
    from headrace.wire.messages import MountRow


CHOOSE = "choose one by a PATH below a mountpoint, or by --cache DIR"


@dataclass(frozen=True, slots=True)
class Target:
    """Names a node and a path. socket: the node's socket, or URLs of REST APIs of other hosts. path: a path of its
    namespace."""

    socket: str
    path: str = "/"


def find_target(socket: str | None, cache: str | None, path: str | None = None) -> Target:
    """Return the first node that exists of: the node of --socket or --cache, the node whose mount has PATH, the node
    whose origin has PATH, the only node of this host, the nodes of the setting `nodes`.

    --socket may name REST APIs, too. Raises NodeUnavailableError when there is no node, UsageError when there are
    several or PATH is empty. A process of root becomes the user of the node (`lowered`).
    """
    options.refuse_empty(path, "PATH", hint="`/` is the whole namespace")
    if socket is not None and _is_api(socket):
        return Target(socket, _namespace_path(path))
    loaded = load()
    run_folder = loaded.config.run_folder
    become_owner(run_folder if socket is None else os.path.dirname(os.path.abspath(socket)))
    states = [state for state in read_states(run_folder) if state.alive() or answers(state.socket)]
    mounted = _below_mountpoint(path, [*states, *lab_states(run_folder)])
    node_socket = _named_socket(socket, cache, run_folder)
    if mounted is not None:
        return mounted if node_socket is None else Target(node_socket, mounted.path)
    running = [node_socket] if node_socket is not None else running_sockets(run_folder, states)
    attached = _within_origin(path, running)
    if attached is not None:
        return attached
    if node_socket is None:
        _refuse_unknown_mount(path)
    if path is not None and "://" in path:
        raise UsageError(
            without_passwords(path),
            why="no node on this host has this origin",
            hint="`headrace mount list` prints its origins",
        )
    if not running and loaded.config.nodes:
        return Target(loaded.config.nodes, _namespace_path(path))
    return Target(select_node(running, loaded, states, hint=CHOOSE), _namespace_path(path))


def _is_api(socket: str) -> bool:
    return "://" in socket or socket.startswith("unix:")


def _named_socket(socket: str | None, cache: str | None, run_folder: str) -> str | None:
    if socket is None and cache is not None:
        return socket_path_of(run_folder, cache.split(":", 1)[0])
    return socket


def _below_mountpoint(path: str | None, states: list[RunState]) -> Target | None:
    """Return the target of the innermost mount that has PATH, without a call on the file system, which may hang."""
    if path is None or "://" in path:
        return None
    path = os.path.abspath(path)
    best: Target | None = None
    longest = 0
    for state in states:
        top = state.mountpoint
        if top and is_at_or_below(path, top) and len(top) > longest:
            best, longest = Target(state.socket, "/" + path[len(top) :].strip("/")), len(top)
    return best


def _refuse_unknown_mount(path: str | None) -> None:
    """Refuse a PATH below a mount whose node is none of the known ones. Another node would take it for a path of its
    own namespace, and `persist` would say that nothing is left to do. Raises UsageError."""
    from headrace.base.mount_table import mount_table, mounted_at
    from headrace.fuse.device import FSTYPE

    if path is None or "://" in path:
        return
    path = os.path.abspath(path)
    above = [row.mountpoint for row in mount_table() if is_at_or_below(path, row.mountpoint)]
    innermost = mounted_at(max(above, key=len, default="/"))
    if innermost is not None and innermost.kind == FSTYPE:
        raise UsageError(
            path,
            why=f"the node of the mount {innermost.mountpoint} is not in the run directory of this command",
            hint="name it by --cache DIR or --socket PATH, or set HEADRACE_RUN_FOLDER as for that node",
        )


def _within_origin(path: str | None, running: list[str]) -> Target | None:
    """Return the target whose origin has PATH, a URL or an absolute path. Raises UsageError if several nodes have
    it."""
    if path is None or not ("://" in path or path.startswith("/")):
        return None
    url = (path if "://" in path else f"file://{os.path.normpath(path)}").rstrip("/")
    targets = []
    for socket in running:
        for row in _mount_rows(socket):
            if is_at_or_below(url, row.url):
                rest = url[len(row.url.rstrip("/")) :].strip("/")
                namespace_path = f"{row.path.rstrip('/')}/{rest}".rstrip("/") or "/"
                targets.append((len(row.url), Target(socket, namespace_path)))
    longest = max((length for length, _ in targets), default=0)
    best = [target for length, target in targets if length == longest]
    if len({target.socket for target in best}) > 1:
        raise UsageError(
            path,
            why="several nodes on this host have this origin",
            hint="choose one by --cache DIR or --socket PATH",
        )
    return best[0] if best else None


def _mount_rows(socket: str) -> list[MountRow]:
    from headrace.client.connection import Connection
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
