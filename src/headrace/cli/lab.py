"""Implements `headrace lab`: a cluster on this machine for trials, failure tests and measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from headrace.base.hangup import end_as_by_interrupt
from headrace.cli import options
from headrace.cli.render import print_json, print_rows, say, warn
from headrace.cli.state import lab_file
from headrace.lab.lab import Lab, LabPlan
from headrace.lab.processes import NotReadyError

Origin = Annotated[
    str | None,
    typer.Argument(
        metavar="ORIGIN",
        help="URL of the data, or a directory.",
        show_default="an object store with a small data set",
    ),
]
Rate = Annotated[
    str,
    options.define(
        "--rate", "RATE", "Rate of each node's link in each direction, such as 1Gbit.", default="unlimited"
    ),
]
Folder = Annotated[
    str,
    options.define(
        "--folder",
        "DIR",
        "Directory for caches, mounts and logs; it is kept at the end.",
        default="a temporary one",
    ),
]
Zones = Annotated[
    int, options.define("--zones", "COUNT", "Number of zones to distribute the nodes over; 0 for none.")
]
Alone = Annotated[
    bool, typer.Option("--alone", help="Run independent nodes without etcd, instead of a cluster.")
]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the node, from 1.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Run a cluster on this machine for trials and failure tests.", no_args_is_help=True
    )
    group.command("up")(up)
    for verb in (status, kill, stop, cont, cut, heal, start, add, down):
        group.command(verb.__name__)(verb)
    app.add_typer(group, name="lab")


def up(
    origin: Origin = None,
    nodes: Annotated[int, options.define("--nodes", "COUNT", "Number of nodes, 64 at most.")] = 4,
    rate: Rate = "",
    cache: Annotated[str, options.define("--cache", "SIZE", "Cache capacity of each node.")] = "2GiB",
    folder: Folder = "",
    zones: Zones = 0,
    alone: Alone = False,
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.OriginOption = None,
    json: options.Json = False,
) -> None:
    """Start an etcd and nodes with mounts on this machine.

    The command returns when all nodes are ready. As root, each node has a network namespace and a link of its own.
    `headrace lab down` ends the lab.
    """
    from headrace.base.sizes import parse_size
    from headrace.cli.up import origin_options, url_of
    from headrace.lab.network import parse_rate

    origin_settings = origin_options(
        endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, pairs=option or []
    )
    end_as_by_interrupt()
    lab = Lab(_state_path(), progress=warn if json else say)
    plan = LabPlan(
        nodes=nodes,
        rate_bits_s=parse_rate(rate) if rate else 0,
        cache_bytes=parse_size(cache),
        zones=zones,
        origin=url_of(origin) if origin else "",
        origin_options=origin_settings,
        alone=alone,
        folder=folder,
    )
    with _status_of_node():
        lab.up(plan)
    _show(lab, as_json=json)
    if sys.stdout.isatty() and not json:
        say("end it with `headrace lab down`")


def status(json: options.Json = False) -> None:
    """Print the nodes, which of them run, and whose link is cut.

    Other commands reach a node by its socket: `headrace status --socket SOCKET`.
    """
    _show(_lab(), as_json=json)


def kill(
    number: Number,
    only: Annotated[
        str,
        options.define(
            "--only", "node", "Processes to kill: node for the daemon without the mount.", default="all"
        ),
    ] = "",
    json: options.Json = False,
) -> None:
    """Kill the processes of a node (SIGKILL)."""
    from headrace.base.errors import UsageError

    if only not in ("", "node"):
        raise UsageError(f"--only {only}", why="unknown process", hint="--only node")
    _lab().kill(number, only_node=only == "node")
    _show(_lab(), as_json=json)


def stop(number: Number, json: options.Json = False) -> None:
    """Suspend the processes of a node (SIGSTOP).

    Readers of its mount block until `headrace lab cont`.
    """
    _lab().stop(number)
    _show(_lab(), as_json=json)


def cont(number: Number, json: options.Json = False) -> None:
    """Resume the processes of a suspended node (SIGCONT)."""
    _lab().cont(number)
    _show(_lab(), as_json=json)


def cut(
    number: Number,
    one_way: Annotated[
        str,
        options.define(
            "--one-way",
            "in|out",
            "Packets to drop: in for those the node receives, out for those it sends.",
            default="both",
        ),
    ] = "",
    json: options.Json = False,
) -> None:
    """Drop all packets of a node until `headrace lab heal`."""
    _lab().cut(number, one_way=one_way)
    _show(_lab(), as_json=json)


def heal(number: Number, json: options.Json = False) -> None:
    """Restore the link of a node after `headrace lab cut`."""
    _lab().heal(number)
    _show(_lab(), as_json=json)


def start(number: Number, json: options.Json = False) -> None:
    """Start a node again after `headrace lab kill`."""
    with _status_of_node():
        _lab().start(number)
    _show(_lab(), as_json=json)


def add(json: options.Json = False) -> None:
    """Add one more node to the lab."""
    with _status_of_node():
        _lab().add()
    _show(_lab(), as_json=json)


def down(json: options.Json = False) -> None:
    """End the lab with its processes, mounts and namespaces.

    Succeeds also when no lab runs.
    """
    Lab(_state_path(), progress=warn).down()
    if json:
        print_json({"down": True})


@contextmanager
def _status_of_node() -> Iterator[None]:
    """End with the exit status of a node that can't start: the cause is the node's own error."""
    try:
        yield
    except NotReadyError as error:
        if not error.status or error.status < 0:
            raise
        warn(str(error))
        raise typer.Exit(error.status) from None


def _lab() -> Lab:
    return Lab(_state_path())


def _state_path() -> str:
    from headrace.config.load import load

    return lab_file(load().config.run_folder)


def _show(lab: Lab, *, as_json: bool) -> None:
    rows = lab.status()
    if not as_json:
        rows = [{**row, "pids": len(row["pids"])} for row in rows]
    print_rows(rows, as_json=as_json)
