"""Implements `headrace stat`: prints the attributes of a path."""

from __future__ import annotations

import os

import typer

from headrace.cli import options
from headrace.cli.ls import show_mtime
from headrace.cli.render import print_tree


def register(app: typer.Typer) -> None:
    app.command("stat")(stat)


def stat(
    path: options.Path,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the attributes of a path, and where it is cached.

    `owners` are the nodes that the ring gives, `holders` those that keep a copy because the file is hot.
    """
    import msgspec

    from headrace.base.model import Kind
    from headrace.cli.request import ask, client_of
    from headrace.wire.location_messages import LocationAsk, LocationShown

    with client_of(socket, cache, path) as (client, target):
        entry = client.resolve(os.fsencode(target.path))
        row: dict[str, object] = {
            "path": target.path,
            "kind": entry.kind.name.lower(),
            "id": int(entry.id),
            "size_bytes": entry.version.size_bytes,
            "mtime": show_mtime(entry.version.mtime_ns),
        }
        if entry.kind is Kind.FILE:
            row.update(client.file_state(entry.id))
            del row["socket"]  # the node that answered
            shown = ask(LocationAsk(os.fsencode(target.path)), target.socket, None)
            assert isinstance(shown, LocationShown)
            row["location"] = msgspec.to_builtins(shown.location)
            moved = row.pop("moved", "")
            row = {**row, "tier": row.get("tier", ""), "volume": row.get("volume", ""), "placed": ""}
            if row["tier"]:
                row["placed"] = _reason(is_sunk=moved == "down", path=target.path, socket=target.socket)
    print_tree(row, as_json=json)


def _reason(*, is_sunk: bool, path: str, socket: str) -> str:
    """Return why a file is in its tier."""
    from headrace.cli.request import ask
    from headrace.wire.policy_messages import PolicyExplain, PolicyExplained

    if is_sunk:
        return "moved down as it cooled"
    answer = ask(PolicyExplain(os.fsencode(path)), socket, None)
    assert isinstance(answer, PolicyExplained)
    rule = next(decision for decision in answer.decisions if decision.effect == "tier")
    if rule.rule:
        return f"rule {rule.rule} of the policy, line {rule.line}: {rule.value}"
    return "the first tier that had space"
