"""`headrace fuse MOUNTPOINT`: one more mount of a node that runs."""

from __future__ import annotations

import os
import time

import typer

from headrace.cli import options
from headrace.cli.state import State


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
    """Mount a running node once more.

    Its namespace is at MOUNTPOINT until ^C, SIGTERM or `headrace down`.
    """
    began_s = time.monotonic()
    from headrace.base.places import check_places
    from headrace.base.write_modes import WriteModes
    from headrace.cli.process import MountOptions
    from headrace.cli.supervise import Supervisor
    from headrace.cli.target import find_target
    from headrace.cli.up import check_io, log_path_of, show_ready
    from headrace.config.load import load
    from headrace.sdk.client import connect

    check_io(io)
    at = find_target(socket, cache).socket
    state = State(
        kind="fuse", pid=os.getpid(), socket=at, mountpoint=os.path.abspath(mountpoint), log=log_path_of(at)
    )
    client = connect(at, role="cli")
    writable = WriteModes.parse(client.write).any
    check_places([], client.mounts().values(), mountpoint)
    client.close()
    supervisor = Supervisor(
        state, load().config.run_folder, config=None, mount=MountOptions(io, allow_other, writable=writable)
    )
    supervisor.run(lambda ready: show_ready(ready, time.monotonic() - began_s, as_json=json))
