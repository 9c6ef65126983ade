"""Implements `headrace mount add | list | remove` for the mount table of a running node."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import options
from headrace.cli.render import print_json, print_rows, say, warn


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Attach origins to a running node, list and detach them.", no_args_is_help=True)
    group.command("add")(add)
    group.command("list")(list_)
    group.command("remove")(remove)
    app.add_typer(group, name="mount")


def add(
    path: options.MountPath,
    origin: Annotated[str, typer.Argument(metavar="ORIGIN", help="URL of the data, or a directory.")],
    endpoint: options.Endpoint = None,
    region: options.Region = None,
    profile: options.Profile = None,
    anonymous: options.Anonymous = False,
    option: options.OriginOption = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EFFECT=VALUE",
            help="Effect of the policy on all files of the mount, such as `ttl=2d`; may be repeated. It ends with "
            "the mount.",
        ),
    ] = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Attach ORIGIN at PATH of the namespace.

    The node attaches it again after a restart, without the secrets that were given with -o.
    """
    from headrace.cli.policy import check_text
    from headrace.cli.request import ask
    from headrace.cli.up import origin_options, url_of
    from headrace.policy.rule_text import parse_effects, pattern_below, with_rule
    from headrace.wire.messages import Done, MountAdd

    origin_settings = origin_options(
        endpoint=endpoint, region=region, profile=profile, anonymous=anonymous, pairs=option or []
    )
    effects, pattern = parse_effects(rule or []), pattern_below(path)
    if effects:
        check_text(with_rule("", pattern, effects), "--rule")  # before the mount exists
    done = ask(MountAdd(path=path, url=url_of(origin), options=origin_settings), socket, cache)
    if effects:
        _add_rule(path, effects, socket, cache)
    print_json({"path": path, "url": url_of(origin)}) if json else say(
        f"attached: {url_of(origin)} at {path}"
    )
    if isinstance(done, Done) and done.warning:
        warn(done.warning)


def list_(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Print the attached origins and their paths."""
    import msgspec

    from headrace.cli.request import ask
    from headrace.wire.messages import MountList, Mounts

    answer = ask(MountList(), socket, cache)
    assert isinstance(answer, Mounts)
    print_rows([msgspec.to_builtins(row) for row in answer.rows], as_json=json)


def remove(
    path: options.MountPath,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Detach the origin at PATH of the namespace.

    The origin keeps its objects.
    """
    from headrace.cli.request import ask
    from headrace.wire.messages import Done, MountRemove

    done = ask(MountRemove(path=path), socket, cache)
    print_json({"path": path}) if json else say(f"detached: {path}")
    if isinstance(done, Done) and done.warning:
        warn(done.warning)


def _add_rule(path: str, effects: dict[str, str], socket: str | None, cache: str | None) -> None:
    """Give a new mount its rule. Raise PathNotFoundError, without a rule, if another command detached it meanwhile:
    a rule ends with its mount."""
    from headrace.base.errors import PathNotFoundError
    from headrace.cli.policy import change_policy
    from headrace.cli.request import ask
    from headrace.policy.rule_text import pattern_below, with_rule, without_rule_of_mount
    from headrace.wire.messages import MountList, Mounts

    pattern = pattern_below(path)
    change_policy(lambda text: with_rule(text, pattern, effects, of_mount=True), socket, cache, json=None)
    answer = ask(MountList(), socket, cache)
    assert isinstance(answer, Mounts)
    if all(pattern_below(row.path) != pattern for row in answer.rows):
        change_policy(lambda text: without_rule_of_mount(text, path), socket, cache, json=None)
        raise PathNotFoundError(f"mount {path}", why="it was detached before it had its rule")
