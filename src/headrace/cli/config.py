"""Implements `headrace config show | explain`."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from headrace.base.errors import UsageError
from headrace.cli import options
from headrace.cli.render import print_rows, say
from headrace.config.schema import is_secret


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Print settings, their sources and their meaning.", no_args_is_help=True)
    group.command("show")(show)
    group.command("explain")(explain)
    app.add_typer(group, name="config")


def show(cache: options.Cache = None, config: options.ConfigFile = None, json: options.Json = False) -> None:
    """Print the settings in force and the source of each.

    Secrets are masked.
    """
    import msgspec

    from headrace.config.load import load

    loaded = load({"cache": cache}, file=config)
    values = hide_secrets(msgspec.to_builtins(loaded.config))
    rows = [{"setting": name, "value": value, "from": loaded.sources[name]} for name, value in values.items()]
    if not json:
        rows = [row | {"value": _in_words(str(row["setting"]), row["value"])} for row in rows]
    print_rows(rows, as_json=json)


def explain(
    setting: Annotated[
        str | None,
        typer.Argument(metavar="SETTING", help="Name of the setting.", show_default="all settings"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Print the meaning, variable and default of settings."""
    import dataclasses

    from headrace.config.describe import settings

    rows = [row for row in settings() if setting in (None, row.name)]
    if not rows:
        raise UsageError(
            f"setting {setting!r}", why="there is no such setting", hint="`headrace config explain` lists all"
        )
    if json:
        print_rows([dataclasses.asdict(row) for row in rows], as_json=True)
        return
    for row in rows:
        say(f"{row.name}" + (f"  [{row.variable}]" if row.variable else ""))
        say(f"    {row.meaning}")
        say(f"    default: {row.default.replace('`', '')}")


def _in_words(name: str, value: Any) -> str:
    from headrace.base.sizes import show_size

    if name == "cache":
        return ", ".join(
            f"{volume['folder']}:{show_size(volume['capacity_bytes'])}:{volume['tier']}"
            + (f":{show_size(volume['writes_a_day'])}" if volume.get("writes_a_day") else "")
            for volume in value
        )
    if name == "mounts":
        return ", ".join(f"{path} {mount['url']}" for path, mount in value.items()) or "-"
    return show_size(value) if name.endswith(("_bytes", "_bytes_max")) else str(value)


def hide_secrets(value: Any, name: str = "") -> Any:
    """Return a copy with *** in place of secrets: options of secret names, and the passwords of URLs."""
    if isinstance(value, dict):
        return {key: hide_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [hide_secrets(item, name) for item in value]
    if isinstance(value, str):
        if is_secret(name):
            return "***" if value else ""  # whether it is set is no secret
        return re.sub(r"(://)[^/@\s]+@", r"\1***@", value)
    return value
