"""`headrace lab`: a cluster on this machine, to try, to break and to measure."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.render import print_json, print_rows, say, warn
from headrace.cli.state import lab_file
from headrace.lab.lab import Lab, LabPlan

Number = Annotated[int, typer.Argument(metavar="N", help="The node's number, from 1.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="A cluster on this machine, to try and to break.", no_args_is_help=True)
    group.command("up")(up)
    for verb in (status, kill, stop, cont, cut, heal, start, add, down):
        group.command(verb.__name__)(verb)
    app.add_typer(group, name="lab")


def up(
    origin: Annotated[
        str | None,
        typer.Argument(
            metavar="ORIGIN", help="As of `headrace up`; without it, an object store with a small data set."
        ),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="COUNT", help="How many.")] = 4,
    rate: Annotated[
        str, typer.Option("--rate", metavar="RATE", help="Of each node's link, each way, such as 1Gbit.")
    ] = "",
    cache: Annotated[str, typer.Option("--cache", metavar="SIZE", help="Of each node.")] = "2GiB",
    folder: Annotated[
        str, typer.Option("--folder", metavar="DIR", help="For caches, mounts and logs; kept at the end.")
    ] = "",
    zones: Annotated[int, typer.Option("--zones", metavar="COUNT", help="Deal the nodes to zones.")] = 0,
    alone: Annotated[bool, typer.Option("--alone", help="Nodes that know nothing of each other.")] = False,
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.OriginOption = None,
    json: options.Json = False,
) -> None:
    """Start an etcd and nodes with mounts; returns when all are ready.

    As root each node has a network namespace and a link of its own. `headrace lab down` ends it.
    """
    from headrace.cli.up import origin_options, url_of
    from headrace.config.sizes import parse_size
    from headrace.lab.network import parse_rate

    given = origin_options(
        endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, pairs=option or []
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    lab = Lab(_state_path(), progress=warn if json else say)
    lab.up(
        LabPlan(
            nodes=nodes,
            rate_bits_s=parse_rate(rate) if rate else 0,
            cache_bytes=parse_size(cache),
            zones=zones,
            origin=url_of(origin) if origin else "",
            origin_options=given,
            alone=alone,
            folder=folder,
        )
    )
    _show(lab, as_json=json)
    if sys.stdout.isatty() and not json:
        say("end it with `headrace lab down`")


def status(json: options.Json = False) -> None:
    """Print the nodes: which run, and whose link is cut."""
    _show(_lab(), as_json=json)


def kill(
    number: Number,
    only: Annotated[
        str, typer.Option("--only", metavar="node", help="The daemon alone; the mount stays.")
    ] = "",
    json: options.Json = False,
) -> None:
    """Kill a node's processes (SIGKILL)."""
    from headrace.base.errors import UsageError

    if only not in ("", "node"):
        raise UsageError(f"--only {only}", why="unknown", hint="node is all there is")
    _lab().kill(number, only_node=only == "node")
    _show(_lab(), as_json=json)


def stop(number: Number, json: options.Json = False) -> None:
    """Stop a node's processes where they are (SIGSTOP); who reads its mount hangs."""
    _lab().stop(number)
    _show(_lab(), as_json=json)


def cont(number: Number, json: options.Json = False) -> None:
    """Let a stopped node go on (SIGCONT)."""
    _lab().cont(number)
    _show(_lab(), as_json=json)


def cut(
    number: Number,
    one_way: Annotated[
        str, typer.Option("--one-way", metavar="in|out", help="Only what it gets, or what it sends.")
    ] = "",
    json: options.Json = False,
) -> None:
    """Drop a node's packets, without a word, until `lab heal`."""
    _lab().cut(number, one_way=one_way)
    _show(_lab(), as_json=json)


def heal(number: Number, json: options.Json = False) -> None:
    """Let a node's packets through again."""
    _lab().heal(number)
    _show(_lab(), as_json=json)


def start(number: Number, json: options.Json = False) -> None:
    """Start a node again after it was killed."""
    _lab().start(number)
    _show(_lab(), as_json=json)


def add(json: options.Json = False) -> None:
    """Start one more node."""
    _lab().add()
    _show(_lab(), as_json=json)


def down(json: options.Json = False) -> None:
    """End the lab: processes, mounts, namespaces. Nothing happens where there is none."""
    Lab(_state_path()).down()
    if json:
        print_json({"down": True})


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


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
