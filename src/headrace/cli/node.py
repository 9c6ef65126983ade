"""Implements `headrace node run`, a node in this process for service managers, `headrace node drain` and `headrace node
break-claim`."""

from __future__ import annotations

import json as jsons
import os
import threading
from typing import Annotated, Any

import typer

from headrace.base.logs import log_to_stderr
from headrace.cli import lowered, options
from headrace.cli.render import print_json, say, warn
from headrace.cli.state import RunState, write_state


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Run a node without a mount, drain it, break its claims.",
        no_args_is_help=True,
    )

    @group.callback()
    def top() -> None:
        pass

    group.command("run")(run)
    group.command("drain")(drain)
    group.command("break-claim")(break_claim)
    app.add_typer(group, name="node")


def run(
    cache: options.Cache = None,
    cluster: options.Cluster = None,
    node_id: options.NodeId = None,
    listen: options.Listen = None,
    zone: options.Zone = None,
    user: options.User = None,
    config: options.ConfigFile = None,
    json: options.Json = False,
) -> None:
    """Run a node in the foreground, without a FUSE mount.

    It attaches the origins of the configuration, and runs until SIGTERM, ^C, or the terminal closes.
    """
    from headrace.base.places import check_places
    from headrace.cli.process import error_of
    from headrace.cli.start_folders import StartFolders, removed_if_it_fails
    from headrace.cli.state import remove_state
    from headrace.config.load import check_cache_parents, load
    from headrace.node.node import run_node

    flags: dict[str, Any] = {"cache": cache, "cluster": cluster, "node_id": node_id, "listen": listen}
    loaded = load({**flags, "zone": zone, "user": user}, file=config)
    check_cache_parents(loaded)
    settings = loaded.config
    check_places(
        [volume.folder for volume in settings.cache], [mount.url for mount in settings.mounts.values()]
    )
    account = lowered.account_for(settings)
    if account is not None:
        lowered.hand_over_folders(settings, account)
        account.result_of(lowered.check_program)
        account.become()
    state = RunState(kind="node", pid=os.getpid(), node_pid=os.getpid(), socket=settings.socket_path)
    state.cache = [volume.folder for volume in settings.cache]
    reading, writing = os.pipe()
    failed: list[dict[str, Any]] = []

    def wait_ready(folders: StartFolders) -> None:
        with open(reading, "rb") as source:
            answer = jsons.loads(source.readline() or b"{}")
        if "error" in answer:
            failed.append(answer)
        elif answer:
            folders.keep()
            _announce(settings.run_folder, state, answer, as_json=json)

    with removed_if_it_fails(settings, log="") as folders:
        folders.create()
        # daemon: a node that did not start writes nothing, and its thread must not delay the exit
        listener = threading.Thread(target=wait_ready, args=(folders,), name="ready", daemon=True)
        listener.start()
        _log_to_stderr(settings.log_level)
        try:
            status = run_node(settings, ready_fd=writing)
        finally:
            remove_state(settings.run_folder, state.pid)
        listener.join(5)
    if failed:
        raise error_of(failed[0])
    raise typer.Exit(status)


def _announce(run_folder: str, state: RunState, answer: dict[str, Any], *, as_json: bool) -> None:
    """Write the state file, and say that the node is ready. The node runs on if that fails; stderr says so."""
    try:
        write_state(run_folder, state)
    except OSError as error:
        warn(f"the state of this command can't be written, so `headrace down` does not find it: {error}")
    try:
        print_json(answer) if as_json else say(f"ready: {answer['socket']}")
    except BrokenPipeError:
        pass
    except OSError as error:
        warn(f"the node is ready, but that can't be printed: {error}")


def drain(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Hand this node's data over to the others, to shut it down.

    The node owns no file of the cluster afterwards.
    """
    from headrace.cli.job_progress import run_job

    run_job("drain", "/", socket=socket, cache=cache, as_json=json)


def break_claim(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Path of the exclusive directory in the namespace.")
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Break the claim even if the node that holds it is in the cluster."),
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Release the exclusive directory PATH of a node that is lost.

    Any node of the cluster takes the request. What the lost node wrote there and did not persist stays on its disk. If
    that node comes back, it persists nothing there before it is started again and has claimed the directory again.
    """
    from headrace.cli.request import ask
    from headrace.wire.messages import BreakClaim

    ask(BreakClaim(path=path, force=force), socket, cache)
    if json:
        print_json({"path": path})
    else:
        say(f"the claim is broken: {path}; its holder persists nothing there before it is started again")


def _log_to_stderr(level: str) -> None:
    """Log as the node does, except the error that this command prints itself."""
    handler = log_to_stderr(level)
    handler.addFilter(lambda record: not str(record.msg).startswith("node did not start"))
