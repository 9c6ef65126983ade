"""`headrace tls init | issue | renew | show`: an authority of a cluster, and certificates for its nodes and clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.render import print_rows

if TYPE_CHECKING:
    from headrace.identity.authority import Authority, Issued

Folder = Annotated[
    str | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Where the authority lies.",
        show_default="/etc/headrace/authority, or ~/.config/headrace/authority",
    ),
]
Days = Annotated[float | None, typer.Option("--days", metavar="N", help="How long it is good.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Certificates of nodes and clients.", no_args_is_help=True)
    for command in (init, issue, renew, show):
        group.command(command.__name__)(command)
    app.add_typer(group, name="tls")


def init(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster's name.")],
    folder: Folder = None,
    days: Days = None,
    json: options.Json = False,
) -> None:
    """Make the authority of CLUSTER. One that is there is never replaced. Its key must stay on this host."""
    from headrace.config.load import load
    from headrace.identity.authority import AUTHORITY_DAYS, Authority

    made = Authority.make(
        _folder_of(folder),
        cluster,
        days=AUTHORITY_DAYS if days is None else days,
        form=load().config.tls_identity,
    )
    _print([made.path], json=json)


def issue(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Ids of nodes, or names of operators, clients or services."),
    ],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="node; operator: may seal records of mounts, pins and jobs, and ask the REST API; client: may ask the "
            "REST API; service: etcd and its users, no part of Headrace.",
        ),
    ] = "node",
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="A name or address of it, for programs that compare them."
        ),
    ] = None,
    days: Days = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Issue a certificate for each NAME: a directory of that name, to be copied to its host. They are good for 7
    days, unless told otherwise."""
    from headrace.identity.authority import CERTIFICATE_DAYS

    authority = _authority(folder)
    life = CERTIFICATE_DAYS if days is None else days
    _print(
        [_certificate(authority.issue(name, role=role, days=life, hosts=host or [])) for name in names],
        json=json,
    )


def renew(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which; all when left out.")
    ] = None,
    days: Days = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Issue certificates again, with new keys, each for as long as before. Who has one takes the new files within a
    second of their arrival."""
    authority = _authority(folder)
    paths = [_certificate(authority.renew(name, days=days)) for name in names or authority.names()]
    _print(paths, json=json)


def show(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Certificates, or directories; those of the authority."),
    ] = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Say whose certificates are, and when they end."""
    import os

    from headrace.identity.authority import certificates_below

    shown: list[str] = []
    for path in paths or [_folder_of(folder)]:
        shown += [path] if os.path.isfile(path) else certificates_below(path)
    _print(shown, json=json)


def _authority(folder: str | None) -> Authority:
    from headrace.config.load import load
    from headrace.identity.authority import Authority

    return Authority(_folder_of(folder), form=load().config.tls_identity)


def _folder_of(folder: str | None) -> str:
    from headrace.config.load import default_authority_folder

    return folder or default_authority_folder()


def _certificate(folder: str) -> str:
    import os

    from headrace.identity.authority import CERTIFICATE

    return os.path.join(folder, CERTIFICATE)


def _print(paths: list[str], *, json: bool) -> None:
    from headrace.config.load import load
    from headrace.identity.authority import look_at

    form = load().config.tls_identity
    print_rows([_row(look_at(path, form=form)) for path in paths], as_json=json)


def _row(issued: Issued) -> dict[str, Any]:
    identity = issued.identity
    name = "authority" if issued.is_authority else str(identity) if identity else "no name of a member"
    return {
        "file": issued.path,
        "who": f"{name} {issued.subject}" if identity is None else name,
        "names": " ".join(issued.names),
        "ends": issued.ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "left_s": round(issued.ends.timestamp() - time.time()),
    }
