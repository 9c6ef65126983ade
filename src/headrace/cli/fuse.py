"""Implements `headrace fuse MOUNTPOINT`: adds a mount to a running node."""

from __future__ import annotations

import os
import time
from typing import Any

import typer

from headrace.cli import options
from headrace.cli.options import refuse_empty
from headrace.cli.state import RunState


def register(app: typer.Typer) -> None:
    app.command("fuse")(fuse)


def fuse(
    mountpoint: options.Mountpoint,
    io: options.Io = "auto",
    allow_other: options.AllowOther = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Mount the namespace of a running node at one more place.

    The mount stays at MOUNTPOINT until ^C, SIGTERM or `headrace down`.
    """
    began_s = time.monotonic()
    from headrace.base.places import check_places
    from headrace.base.write_modes import WriteModes
    from headrace.cli import lowered
    from headrace.cli.exclusive_mounts import ExclusiveMounts
    from headrace.cli.process import MountOptions
    from headrace.cli.supervise import Supervisor
    from headrace.cli.up import check_io, log_path_of, show_ready
    from headrace.config.load import load

    refuse_empty(mountpoint, "MOUNTPOINT")
    check_io(io)
    run_folder = load().config.run_folder
    owner = lowered.owner_of(run_folder if socket is None else os.path.dirname(os.path.abspath(socket)))
    node = _describe(socket, cache) if owner is None else owner.result_of(lambda: _describe(socket, cache))
    node_socket = str(node["socket"])
    state = RunState(
        kind="fuse",
        pid=os.getpid(),
        socket=node_socket,
        mountpoint=os.path.abspath(mountpoint),
        log=log_path_of(node_socket),
    )
    check_places([], node["urls"], mountpoint)
    modes = WriteModes.parse(node["write"])
    options = MountOptions(io, allow_other, writable=modes.any)
    if owner is None:
        exclusive = ExclusiveMounts(node["upper"], modes)
        supervisor = Supervisor(state, run_folder, config=None, mount=options, exclusive=exclusive)
    else:
        owner.result_of(lowered.check_program)
        mounted = lowered.mount_as_root(owner, mountpoint, run_folder, options)
        try:
            owner.become(lowered.TO_MOUNT)
            supervisor = Supervisor(state, run_folder, config=None, mount=options, mounted=mounted)
        except BaseException:
            mounted.undo()
            raise
    supervisor.run(lambda ready: show_ready(ready, time.monotonic() - began_s, as_json=json))


def _describe(socket: str | None, cache: str | None) -> dict[str, Any]:
    """Return the socket of the node, the URLs of its origins, its write modes as text, and its upper layer."""
    from headrace.cli.target import find_target
    from headrace.client.node_client import connect

    node_socket = find_target(socket, cache).socket
    client = connect(node_socket, role="cli")
    try:
        return {
            "socket": node_socket,
            "write": client.write,
            "upper": client.upper,
            "urls": list(client.mounts().values()),
        }
    finally:
        client.close()
