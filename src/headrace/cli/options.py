"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="A configuration file more.")
]
Socket = Annotated[str | None, typer.Option("--socket", metavar="PATH", help="The node that listens there.")]
CacheOf = Annotated[
    str | None, typer.Option("--cache", metavar="DIR", help="The node that owns this cache folder.")
]
Cache = Annotated[
    list[str] | None,
    typer.Option(
        "--cache", metavar="DIR:SIZE[:TIER]", help="A folder for cache files and its size; may be repeated."
    ),
]
Path = Annotated[str, typer.Argument(help="A path of the namespace, or one below a mountpoint.")]
Io = Annotated[
    str,
    typer.Option("--io", metavar="MODE", help="How the kernel reads: auto, passthrough, splice or noopen."),
]
AllowOther = Annotated[bool, typer.Option("--allow-other", help="Other users may read the mount.")]
Endpoint = Annotated[
    str | None, typer.Option("--endpoint", metavar="URL", help="Address of the object store.")
]
Region = Annotated[str | None, typer.Option("--region", help="Region of the bucket.")]
Profile = Annotated[str | None, typer.Option("--profile", help="Profile of the credentials file.")]
Anonymous = Annotated[bool, typer.Option("--anonymous", help="Send no credentials.")]
OriginOption = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", metavar="KEY=VALUE", help="An option of the origin; may be repeated."),
]
