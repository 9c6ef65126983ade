"""Implements `headrace down`: ends what `up` and `fuse` run, and cleans up after killed ones."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from headrace.base.errors import DeadlineExceededError, NodeUnavailableError, UsageError
from headrace.cli import gateways, options
from headrace.cli.render import print_json, say
from headrace.cli.state import (
    RunState,
    drop_socket,
    end,
    listener_of,
    process_of,
    read_states,
    remove_state,
)

STOP_WITHIN_S = 40.0
"""Seconds that a process has to end after SIGTERM."""
NEED_A_NODE = ("fuse", *gateways.WORDS)
"""Kinds of processes that use a node that another command runs."""


def register(app: typer.Typer) -> None:
    app.command("down")(down)


def down(
    mountpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="MOUNTPOINT",
            help="Mount to end, by its directory; omit it when only one runs on this host.",
        ),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="End all nodes, mounts and gateways of this user on this host.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Unmount MOUNTPOINT and stop its node.

    Also cleans up after processes that were killed.
    """
    from headrace.cli.lowered import TO_MOUNT, become_owner
    from headrace.config.load import load

    options.refuse_empty(mountpoint, "MOUNTPOINT")
    folder = load().config.run_folder
    become_owner(folder, TO_MOUNT)
    states = read_states(folder)
    targets = states if all_ else [_choose(states, mountpoint)]
    targets.sort(key=lambda state: state.kind not in NEED_A_NODE)  # before the node they need
    ended: list[dict[str, Any]] = []
    for state in targets:
        _end(state, folder)
        ended.append(
            {"kind": state.kind, "pid": state.pid, "mountpoint": state.mountpoint, "socket": state.socket}
        )
    if json:
        print_json(ended)
        return
    for row in ended:
        say(f"ended: {row['mountpoint'] or row['socket']}")


def _choose(states: list[RunState], mountpoint: str | None) -> RunState:
    if mountpoint is not None:
        from headrace.fuse.mount import mountpoint_path

        for state in states:
            if state.mountpoint in (os.path.abspath(mountpoint), mountpoint_path(mountpoint)):
                return state
        raise NodeUnavailableError(f"{mountpoint}", why="no mount of Headrace is at this path")
    if not states:
        raise NodeUnavailableError("nothing to end", why="neither `up` nor `fuse` runs on this host")
    states = [state for state in states if state.kind not in gateways.WORDS] or states
    if len(states) > 1:
        names = ", ".join(state.mountpoint or state.socket for state in states)
        raise UsageError(
            "several nodes or mounts run on this host", why=names, hint="give a MOUNTPOINT, or --all"
        )
    return states[0]


def _end(state: RunState, folder: str) -> None:
    """End a process, and the processes that it runs."""
    if state.alive():
        if not end(process_of(state), STOP_WITHIN_S):
            raise DeadlineExceededError(
                f"process {state.pid} has not ended within {STOP_WITHIN_S:.0f} s", hint=f"see {state.log}"
            )
        if state.pid not in [left.pid for left in read_states(folder)]:
            return
        # something killed it meanwhile: in order, it removes its state file last
    _clean_up(state, folder, [other for other in read_states(folder) if other.alive()])


def _clean_up(state: RunState, folder: str, others: list[RunState]) -> None:
    """End what a dead process has left. others: states of live processes. They may have its mount or its node by
    now."""
    from headrace.cli.supervise import detach
    from headrace.fuse.servers import Role, Servers

    if state.mountpoint and state.mountpoint not in [other.mountpoint for other in others]:
        servers = Servers.open(folder, state.mountpoint)
        for role in Role:  # the FD store first: it would start a session again
            for pid in servers.pids(role):
                end(servers.pidfd(role, pid), STOP_WITHIN_S)
        servers.close()
        detach(state.mountpoint)
    if state.kind not in NEED_A_NODE and state.socket not in [
        other.socket for other in others if other.kind not in NEED_A_NODE
    ]:
        end(listener_of(state.socket), STOP_WITHIN_S)
        drop_socket(state.socket)
    remove_state(folder, state.pid)
