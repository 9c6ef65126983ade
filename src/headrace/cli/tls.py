"""Implements `headrace tls init | issue | renew | show` for a cluster's authority and its certificates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.base.errors import HeadraceError, PathNotFoundError, StoreError, UsageError
from headrace.cli import options
from headrace.cli.exit_codes import SOME_FAILED
from headrace.cli.render import print_rows, warn

if TYPE_CHECKING:
    from headrace.identity.authority import Authority

Folder = Annotated[
    str | None,
    options.define(
        "--folder",
        "DIR",
        "Directory of the authority.",
        default="/etc/headrace/authority, or ~/.config/headrace/authority",
    ),
]


def _days(default: str) -> Any:
    return options.define("--days", "N", "Days until the certificate expires, 3650 at most.", default=default)


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Issue and renew certificates of nodes and clients.", no_args_is_help=True)
    for command in (init, issue, renew, show):
        group.command(command.__name__)(command)
    app.add_typer(group, name="tls")


def init(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the cluster.")],
    folder: Folder = None,
    days: Annotated[float | None, _days("3650")] = None,
    json: options.Json = False,
) -> None:
    """Create the certificate authority of CLUSTER.

    An existing authority is never replaced. Its key must stay on this host.
    """
    from headrace.identity.authority import AUTHORITY_DAYS, Authority

    authority = Authority.make(
        _folder_of(folder),
        cluster,
        days=AUTHORITY_DAYS if days is None else days,
        form=_form(),
    )
    _print([authority.path], json=json)


def issue(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME", help="Names to certify: ids of nodes, or names of operators, clients or services."
        ),
    ],
    role: Annotated[
        str,
        options.define(
            "--role",
            "ROLE",
            "Role that the certificates prove. A node joins the cluster. An operator may sign records of mounts, "
            "pins, policies and jobs, and use the REST API. A client may use the REST API. A service is etcd or "
            "a user of it.",
        ),
    ] = "node",
    host: Annotated[
        list[str] | None,
        options.define(
            "--host",
            "HOST",
            "Host name or address to put into the certificate, for programs that compare it; may be repeated.",
        ),
    ] = None,
    days: Annotated[float | None, _days("7")] = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Issue a certificate for each NAME.

    Each certificate and its key are written to a directory of that name, to be copied to its host. If one of the names
    has a certificate already, the command names it and issues none.
    """
    from headrace.identity.authority import CERTIFICATE_DAYS

    authority = _authority(folder)
    life = CERTIFICATE_DAYS if days is None else days
    paths: list[str] = []
    try:
        for directory in authority.issue_all(names, role=role, days=life, hosts=host or []):
            paths.append(_certificate(directory))
    finally:  # what an error of the disk left is printed before it
        if paths:
            _print(paths, json=json)


def renew(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names whose certificates to renew.", show_default="all"),
    ] = None,
    days: Annotated[float | None, _days("as many as before")] = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Issue certificates again, with new keys.

    Each is valid for as long as before. Running processes use the new files within a second of their arrival. One that
    can't be renewed is named, and the others are renewed.
    """
    authority = _authority(folder)
    wanted = list(dict.fromkeys(names or authority.names()))
    if len(wanted) == 1:
        _print([_certificate(authority.renew(wanted[0], days=days))], json=json)
        return
    paths: list[str] = []
    for name in wanted:
        try:
            paths.append(_certificate(authority.renew(name, days=days)))
        except HeadraceError as error:
            warn(f"{name} is not renewed: {error}")
    _print(paths, json=json)
    if len(paths) < len(wanted):
        raise typer.Exit(SOME_FAILED)


def show(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH", help="Certificate files, or directories of them.", show_default="the authority's"
        ),
    ] = None,
    folder: Folder = None,
    json: options.Json = False,
) -> None:
    """Print the owners of certificates, and when they expire.

    One that can't be read is named, and the others are printed.
    """
    import os

    from headrace.identity.authority import certificates_below

    certificates: list[str] = []
    for path in paths or [_folder_of(folder)]:
        certificates += [path] if os.path.isfile(path) else certificates_below(path)
    if len(certificates) == 1:
        _print(certificates, json=json)
        return
    form = _form()
    rows = [row for path in certificates if (row := _row_of_readable(path, form))]
    print_rows(rows, as_json=json)
    if len(rows) < len(certificates):
        raise typer.Exit(SOME_FAILED)


def _authority(folder: str | None) -> Authority:
    from headrace.identity.authority import Authority

    return Authority(_folder_of(folder), form=_form())


def _form() -> str:
    from headrace.config.load import load

    return load().config.tls_identity


def _folder_of(folder: str | None) -> str:
    from headrace.config.load import default_authority_folder

    return folder or default_authority_folder()


def _certificate(folder: str) -> str:
    import os

    from headrace.identity.authority import CERTIFICATE

    return os.path.join(folder, CERTIFICATE)


def _print(paths: list[str], *, json: bool) -> None:
    form = _form()
    print_rows([_row(path, form) for path in paths], as_json=json)


def _row_of_readable(path: str, form: str) -> dict[str, Any] | None:
    """Return the row of a certificate; None for a file that is none, which stderr names."""
    try:
        return _row(path, form)
    except (PathNotFoundError, StoreError, UsageError) as error:
        warn(str(error))
        return None


def _row(path: str, form: str) -> dict[str, Any]:
    from headrace.identity.authority import describe_certificate

    issued = describe_certificate(path, form=form)
    identity = issued.identity
    name = "authority" if issued.is_authority else str(identity) if identity else "no name of a member"
    return {
        "file": issued.path,
        "who": f"{name} {issued.subject}" if identity is None else name,
        "names": " ".join(issued.names),
        "ends": issued.ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "left_s": round(issued.ends.timestamp() - time.time()),
    }
