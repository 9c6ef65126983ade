"""Implements `headrace ls`: lists names of the namespace, cached or not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import options
from headrace.cli.render import print_json, say

if TYPE_CHECKING:
    from headrace.base.model import Entry
    from headrace.client.path_reader import PathReader
    from headrace.vfs.remote.node import RemoteClient


def register(app: typer.Typer) -> None:
    app.command("ls")(ls)


def ls(
    path: options.PathOrAll = "/",
    long: Annotated[
        bool, typer.Option("-l", "--long", help="Print size in bytes and modification time, too.")
    ] = False,
    recursive: Annotated[
        bool, typer.Option("-R", "--recursive", help="List all directories below PATH, too.")
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """List a directory.

    --json prints one object a line. Bytes of a name that are not UTF-8 are lone surrogates there, such as `\\udcff`.
    """
    from headrace.cli.request import client_of

    with client_of(socket, cache, path) as (client, target):
        for name, entry in _walk(client, os.fsencode(target.path), recursive=recursive):
            row = _row(name, entry)
            if json:
                print_json(row)
            else:
                say(_line(row) if long else row["name"])


def _walk(
    client: PathReader | RemoteClient, path: bytes, *, recursive: bool
) -> Iterator[tuple[bytes, Entry]]:
    from headrace.base.model import Kind

    levels = [(path, b"", iter(client.list_path(path)))]
    while levels:
        path, prefix, entries = levels[-1]
        entry = next(entries, None)
        if entry is None:
            levels.pop()
            continue
        yield prefix + entry.name, entry
        if recursive and entry.kind is Kind.DIRECTORY:
            path = path.rstrip(b"/") + b"/" + entry.name
            levels.append((path, prefix + entry.name + b"/", iter(client.list_path(path))))


def _row(name: bytes, entry: Entry) -> dict[str, Any]:
    from headrace.base.model import Kind

    is_directory = entry.kind is Kind.DIRECTORY
    return {
        "name": os.fsdecode(name) + ("/" if is_directory else ""),
        "kind": entry.kind.name.lower(),
        "size_bytes": 0 if is_directory else entry.version.size_bytes,
        "mtime": show_mtime(entry.version.mtime_ns),
    }


def show_mtime(mtime_ns: int) -> str | None:
    """Return a time as text; None where the origin has none, as for directories of object stores."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(mtime_ns / 1e9)) if mtime_ns else None


def _line(row: dict[str, Any]) -> str:
    size = "-" if row["kind"] == "directory" else row["size_bytes"]
    return f"{size:>14}  {row['mtime'] or '-':<20}  {row['name']}"
