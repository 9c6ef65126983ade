"""Declares the options that several commands share, and refuses arguments that are empty."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.base.errors import UsageError


def refuse_empty(argument: str | None, name: str, *, hint: str = "") -> None:
    """Raise UsageError for an argument that is empty, like an unset variable of a shell: it would mean the working
    directory or the whole namespace. name: of the argument."""
    if argument == "":
        raise UsageError(f"argument {name}", why="it is empty", hint=hint)


def define(name: str, metavar: str, help: str, *, default: str | None = None) -> Any:
    """Declare an option with a value. default: what an omitted option means, where its value does not say it."""
    return typer.Option(name, metavar=metavar, help=help, show_default=True if default is None else default)


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ConfigFile = Annotated[
    str | None,
    define("--config", "FILE", "Configuration file to read after those of the system and the user."),
]
Socket = Annotated[
    str | None, define("--socket", "PATH|URL", "Unix socket of the node to use, or URL of its REST API.")
]
CacheOf = Annotated[str | None, define("--cache", "DIR", "Cache directory whose node the command uses.")]
Cache = Annotated[
    list[str] | None,
    define(
        "--cache",
        "DIR:SIZE[:TIER[:WRITES_A_DAY]]",
        "Directory for cache files and its capacity, such as /nvme0/headrace:800GiB; may be repeated.",
        default="the setting cache, or half of the free space in ~/.cache/headrace",
    ),
]
Cluster = Annotated[
    str | None,
    define(
        "--cluster",
        "https://HOST:PORT[/NAME]",
        "URL of the etcd that holds the records of the cluster to join.",
    ),
]
NodeId = Annotated[
    str | None,
    define(
        "--node-id",
        "NAME",
        "Name of this node in the cluster.",
        default="the setting node_id, or the name in its certificate, or the host's",
    ),
]
Listen = Annotated[
    str | None,
    define(
        "--listen",
        "HOST:PORT",
        "Address where other nodes reach this one.",
        default="the setting listen, or the address that leads to etcd, port 7412",
    ),
]
User = Annotated[
    str | None,
    define(
        "--user",
        "NAME[:GROUP]",
        "Run as this unprivileged user when root starts the command; all that is written belongs to it.",
    ),
]
Zone = Annotated[
    str | None,
    define(
        "--zone", "NAME", "Failure domain of this node, such as its rack; replicas go to different zones."
    ),
]
_PATH_HELP = "Path below a mountpoint, in the namespace, or in an origin."
Path = Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)]
PathOrAll = Annotated[
    str, typer.Argument(metavar="PATH", help=_PATH_HELP, show_default="the whole namespace")
]
MountPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="Path in the namespace where the origin is attached, such as /imagenet."
    ),
]
Mountpoint = Annotated[
    str, typer.Argument(metavar="MOUNTPOINT", help="Empty directory where the namespace is mounted.")
]
Io = Annotated[
    str, define("--io", "MODE", "I/O mode of the mount: passthrough, splice, noopen, or auto to choose one.")
]
Write = Annotated[
    str | None,
    define(
        "--write",
        "MODE",
        "Write mode: off, local, back, back:2 or through; PATH=MODE sets it for one path, "
        "and commas separate several. PATH=local,exclusive or PATH=back,exclusive makes a directory that the kernel "
        "serves.",
        default="the setting write, or off",
    ),
]
AllowOther = Annotated[bool, typer.Option("--allow-other", help="Let other users read the mount.")]
Endpoint = Annotated[
    str | None,
    define(
        "--endpoint", "URL", "Address of the object store.", default="the cloud's own, or the environment's"
    ),
]
Region = Annotated[
    str | None,
    define(
        "--region",
        "NAME",
        "Region of the bucket.",
        default="the region of the environment or the profile, or us-east-1",
    ),
]
Profile = Annotated[
    str | None,
    define(
        "--profile",
        "NAME",
        "Profile in ~/.aws with the credentials to use.",
        default="AWS_PROFILE, or default",
    ),
]
Anonymous = Annotated[
    bool, typer.Option("--anonymous", help="Send no credentials to the origin, as for a public bucket.")
]
Replicas = Annotated[
    int | None,
    define(
        "--replicas",
        "N",
        "Number of nodes of the cluster that keep a copy of each file.",
        default="the setting replicas",
    ),
]
JobPriority = Annotated[str, define("--priority", "P", "Priority over other jobs: high, normal or low.")]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Read every fetched file back from disk and compare it with its checksums."
    ),
]
DetachJob = Annotated[
    bool, typer.Option("--detach", help="Print the id of the cluster's job and return while the job runs.")
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, as `headrace job list` prints it.")]
OriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        help="Option of the origin, such as access_key_id=…; KEY=@FILE reads a secret from a file; may be repeated.",
    ),
]


def job_options(replicas: int | None, priority: str, *, verify: bool) -> dict[str, str]:
    """Return the options of a job as text, for the node to validate."""
    words = {"priority": priority} if priority != "normal" else {}
    if replicas is not None:
        words["replicas"] = str(replicas)
    if verify:
        words["verify"] = "true"
    return words
