"""`headrace config show | explain`."""

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

    found = [one for one in settings() if setting in (None, one.name)]
    if not found:
        raise UsageError(f"setting {setting!r}", why="unknown", hint="see `headrace config explain`")
    if json:
        print_rows([dataclasses.asdict(one) for one in found], as_json=True)
        return
    for one in found:
        say(f"{one.name}" + (f"  [{one.variable}]" if one.variable else ""))
        say(f"    {one.meaning}")
        say(f"    default: {one.default.replace('`', '')}")


def _in_words(name: str, value: Any) -> str:
    from headrace.config.sizes import show_size

    if name == "cache":
        return ", ".join(f"{one['folder']}:{show_size(one['capacity_bytes'])}:{one['tier']}" for one in value)
    if name == "mounts":
        return ", ".join(f"{path} {mount['url']}" for path, mount in value.items()) or "-"
    return show_size(value) if name.endswith(("_bytes", "_bytes_max")) else str(value)


def hide_secrets(value: Any, name: str = "") -> Any:
    """A copy with *** for what must not be shown: by the name of an option, and the password part of a URL."""
    if isinstance(value, dict):
        return {key: hide_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, list):
        return [hide_secrets(one, name) for one in value]
    if isinstance(value, str):
        if is_secret(name):
            return "***"
        return re.sub(r"(://)[^/@\s]+@", r"\1***@", value)
    return value
