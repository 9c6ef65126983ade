"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="One more configuration file.")
]
Socket = Annotated[
    str | None,
    typer.Option(
        "--socket", metavar="PATH|URL", help="The node that listens there, or has its REST API there."
    ),
]
CacheOf = Annotated[
    str | None, typer.Option("--cache", metavar="DIR", help="The node that owns this cache folder.")
]
Cache = Annotated[
    list[str] | None,
    typer.Option(
        "--cache", metavar="DIR:SIZE[:TIER]", help="A folder for cache files and its size; may be repeated."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="https://HOST:PORT[/NAME]", help="Join the nodes that use this etcd."),
]
NodeId = Annotated[
    str | None, typer.Option("--node-id", metavar="NAME", help="This node's name there, if not the host's.")
]
Listen = Annotated[
    str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where other nodes reach this one.")
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="NAME[:GROUP]",
        help="Go on as this user, without rights; for root. Nothing is written then.",
    ),
]
Zone = Annotated[str | None, typer.Option("--zone", metavar="NAME", help="Replicas go to different zones.")]
_PATH_HELP = "A path below a mountpoint, one of the namespace, or one of the origin."
Path = Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP)]
PathOrAll = Annotated[str, typer.Argument(metavar="PATH", help=_PATH_HELP, show_default="all")]
MountPath = Annotated[
    str, typer.Argument(metavar="PATH", help="Where in the namespace, for example /imagenet.")
]
Mountpoint = Annotated[str, typer.Argument(metavar="MOUNTPOINT", help="An empty folder.")]
Io = Annotated[
    str,
    typer.Option("--io", metavar="MODE", help="How the kernel reads: auto, passthrough, splice or noopen."),
]
Write = Annotated[
    str | None,
    typer.Option(
        "--write",
        metavar="MODE",
        help="What may be written: off, local, back or through; PATH=MODE for single paths, with commas between.",
    ),
]
AllowOther = Annotated[bool, typer.Option("--allow-other", help="Other users may read the mount.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="Address of the object store.")
]
Region = Annotated[str | None, typer.Option("--region", metavar="NAME", help="Region of the bucket.")]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="Profile of the credentials file.")
]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Send no credentials.")]
Replicas = Annotated[
    int | None,
    typer.Option("--replicas", metavar="N", help="In a cluster: nodes that keep a copy of each file."),
]
JobPriority = Annotated[
    str, typer.Option("--priority", metavar="P", help="Against other jobs: high, normal or low.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Read back what was loaded, and compare it with its checksums.")
]
DetachJob = Annotated[
    bool, typer.Option("--detach", help="In a cluster: print the job's id and end; the job goes on.")
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="As `headrace job list` shows it.")]
OriginOption = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", metavar="KEY=VALUE", help="An option of the origin; may be repeated."),
]


def job_options(replicas: int | None, priority: str, *, verify: bool) -> dict[str, str]:
    """As a job takes them; the node says what it does not understand."""
    found = {"priority": priority} if priority != "normal" else {}
    if replicas is not None:
        found["replicas"] = str(replicas)
    if verify:
        found["verify"] = "true"
    return found
