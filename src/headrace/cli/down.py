"""`headrace down`: ends what `up` and `fuse` run, and cleans up after those that were killed."""

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
NEED_A_NODE = ("fuse", *gateways.WORDS)


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

    folder = load().config.run_folder
    become_owner(folder, TO_MOUNT)
    states = read_states(folder)
    chosen = states if all_ else [_choose(states, mountpoint)]
    chosen.sort(key=lambda state: state.kind not in NEED_A_NODE)  # before the node they need
    ended: list[dict[str, Any]] = []
    for state in chosen:
        _end(state, folder, [one for one in states if one.pid != state.pid and one.alive()])
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
        at = os.path.abspath(mountpoint)
        real = os.path.join(os.path.realpath(os.path.dirname(at)), os.path.basename(at))
        for state in states:
            if state.mountpoint in (at, real):
                return state
        raise NodeUnavailableError(f"{mountpoint}", why="nothing of headrace's is mounted there")
    if not states:
        raise NodeUnavailableError("nothing to end", why="neither `up` nor `fuse` runs here")
    states = [state for state in states if state.kind not in gateways.WORDS] or states
    if len(states) > 1:
        names = ", ".join(state.mountpoint or state.socket for state in states)
        raise UsageError("several run on this host", why=names, hint="name a MOUNTPOINT, or --all")
    return states[0]


def _end(state: RunState, folder: str, others: list[RunState]) -> None:
    """others: those alive; a dead one's mount or node may be theirs by now."""
    if state.alive():
        if not end(process_of(state), STOP_WITHIN_S):
            raise DeadlineExceededError(
                f"process {state.pid} has not ended in {STOP_WITHIN_S:.0f} s", hint=f"see {state.log}"
            )
        return
    from headrace.cli.supervise import detach
    from headrace.fuse.servers import Role, Servers

    if state.mountpoint and state.mountpoint not in [one.mountpoint for one in others]:
        servers = Servers.open(folder, state.mountpoint)
        for role in Role:  # the holder first: it would start a session again
            for pid in servers.pids(role):
                end(servers.pidfd(role, pid), STOP_WITHIN_S)
        servers.close()
        detach(state.mountpoint)
    if state.kind not in NEED_A_NODE and state.socket not in [
        one.socket for one in others if one.kind not in NEED_A_NODE
    ]:
        end(listener_of(state.socket), STOP_WITHIN_S)
        drop_socket(state.socket)
    remove_state(folder, state.pid)
