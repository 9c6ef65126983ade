"""Implements `headrace run -- COMMAND`: starts a training program whose order of reads the node learns."""

from __future__ import annotations

import json as json_module
import os
import signal
import sys
from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.exit_codes import not_started_status, why_not_started
from headrace.cli.render import warn

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores from its start on. A program inherits that, and then goes on writing to a closed pipe."""


def register(app: typer.Typer) -> None:
    app.command("run", context_settings={"allow_interspersed_args": False})(run)


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="Command that starts the program; put `--` before it."),
    ],
    name: Annotated[
        str | None,
        options.define("--name", "NAME", "Name of the job in `headrace plan show`.", default="the program's"),
    ] = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the node that takes the plan, as a line of JSON on stderr.")
    ] = False,
) -> int:
    """Start a training program, and fetch ahead what it reads next.

    The program needs no change: a hook in its Python processes learns the order of each torch DataLoader from its
    sampler (docs/plan.md). The command becomes the program, with its exit status. Without a node on this host the
    program runs all the same.
    """
    variables = _variables_of_caller()
    node_socket = _node_socket(socket, cache)
    if node_socket is not None:
        variables |= _hook_variables(node_socket, name or _program(command))
    if json:
        sys.stderr.write(json_module.dumps({"job": name or _program(command), "socket": node_socket}) + "\n")
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        warn(f"run: {command[0]}: {why_not_started(error, command[0])}")
        return not_started_status(error)


def _variables_of_caller() -> dict[str, str]:
    """Return the environment that this process was started with. Python adds LC_CTYPE in the locale C (PEP 538)."""
    variables = dict(os.environ)
    with open("/proc/self/environ", "rb") as file:
        names = {variable.partition(b"=")[0] for variable in file.read().split(b"\0")}
    if b"LC_CTYPE" not in names:
        variables.pop("LC_CTYPE", None)
    return variables


def _program(command: list[str]) -> str:
    """Return the first word that names a script, or the last component of the command itself."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return os.path.basename(script)


def _node_socket(socket: str | None, cache: str | None) -> str | None:
    """Return the socket of the node to report to; None without one, which is said. UsageError for several."""
    from headrace.base.errors import NodeUnavailableError
    from headrace.client.discovery import find_node

    try:
        return find_node(socket=socket, cache=cache)
    except NodeUnavailableError as error:
        warn(f"the program runs without a plan: {error}")
        return None


def _hook_variables(node_socket: str, name: str) -> dict[str, str]:
    """Return the variables of the environment that load and configure the hook."""
    import headrace.hook
    from headrace.client.discovery import read_states
    from headrace.config.load import load
    from headrace.hook.loaders import JOB, MOUNTS, SOCKET

    folder = os.path.join(os.path.dirname(headrace.hook.__file__), "site")
    before = os.environ.get("PYTHONPATH")
    states = read_states(load().config.run_folder)
    mounts = [(state.mountpoint, "/") for state in states if state.mountpoint and state.socket == node_socket]
    return {
        "PYTHONPATH": folder if not before else f"{folder}{os.pathsep}{before}",
        SOCKET: node_socket,
        JOB: name,
        **({MOUNTS: json_module.dumps(mounts)} if mounts else {}),
    }
