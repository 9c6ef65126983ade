"""Implements `headrace mount add | list | remove` for the mount table of a running node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.errors import HeadraceError
from headrace.cli import options
from headrace.cli.render import print_json, print_rows, say, warn

if TYPE_CHECKING:
    from headrace.wire.messages import MountRow


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

    The node attaches it again after a restart, with its public options only, such as region and endpoint. Put other
    options, and all secrets, into the configuration file.
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
    wanted = _Wanted(path, url_of(origin), effects, socket, cache)
    with wanted.saying_what_is(KeyboardInterrupt):
        done = ask(MountAdd(path=path, url=wanted.url, options=origin_settings), socket, cache)
    if effects:
        with wanted.saying_what_is(KeyboardInterrupt, HeadraceError):
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

    try:
        done = ask(MountRemove(path=path), socket, cache)
    except KeyboardInterrupt:
        _warn_if_attached(path, socket, cache)
        raise
    print_json({"path": path}) if json else say(f"detached: {path}")
    if isinstance(done, Done) and done.warning:
        warn(done.warning)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Describes what `mount add` makes. effects: those of its rule, as `parse_effects` returns them."""

    path: str
    url: str
    effects: dict[str, str]
    socket: str | None
    cache: str | None

    @contextmanager
    def saying_what_is(self, *ends: type[BaseException]) -> Iterator[None]:
        """Say on stderr what exists, if the block ends by one of these exceptions. Nothing is undone: another command
        may use the mount."""
        try:
            yield
        except ends:
            if line := self._what_is():
                warn(line)
            raise

    def _what_is(self) -> str:
        """Return in one line what exists of the mount and its rule; "" if nothing does. Asks the node."""
        from headrace.cli.policy import policy_text
        from headrace.policy.rule_text import pattern_below, with_rule

        try:
            urls = [row.url for row in _rows_at(self.path, self.socket, self.cache)]
            text = policy_text(self.socket, self.cache) if urls and self.effects else ""
        except HeadraceError as error:
            return f"whether {self.url} is attached at {self.path} is not known: {error}"
        if self.url not in urls:
            return ""
        pattern = pattern_below(self.path)
        if not self.effects or with_rule(text, pattern, self.effects, of_mount=True) == text:
            return f"{self.url} is attached at {self.path}, completely"
        return (
            f"{self.url} is attached at {self.path} without its rule; `headrace mount remove {self.path}` detaches it, "
            f"`headrace policy rule '{pattern}' EFFECT=VALUE` sets a rule"
        )


def _warn_if_attached(path: str, socket: str | None, cache: str | None) -> None:
    """Say that an interrupted `mount remove` left the mount: its rule ends first."""
    try:
        is_attached = bool(_rows_at(path, socket, cache))
    except HeadraceError as error:
        warn(f"whether {path} is attached is not known: {error}")
        return
    if is_attached:
        warn(f"{path} is still attached, and a rule that `mount add` gave it may have ended")


def _rows_at(path: str, socket: str | None, cache: str | None) -> list[MountRow]:
    """Return the row of the mount at a path; none if nothing is attached there."""
    from headrace.cli.request import ask
    from headrace.policy.rule_text import pattern_below
    from headrace.wire.messages import MountList, Mounts

    answer = ask(MountList(), socket, cache)
    assert isinstance(answer, Mounts)
    return [row for row in answer.rows if pattern_below(row.path) == pattern_below(path)]


def _add_rule(path: str, effects: dict[str, str], socket: str | None, cache: str | None) -> None:
    """Give a new mount its rule. Raise PathNotFoundError, without a rule, if another command detached it meanwhile:
    a rule ends with its mount."""
    from headrace.base.errors import PathNotFoundError
    from headrace.cli.policy import change_policy
    from headrace.policy.rule_text import pattern_below, with_rule, without_rule_of_mount

    pattern = pattern_below(path)
    change_policy(lambda text: with_rule(text, pattern, effects, of_mount=True), socket, cache, json=None)
    if not _rows_at(path, socket, cache):
        change_policy(lambda text: without_rule_of_mount(text, path), socket, cache, json=None)
        raise PathNotFoundError(f"mount {path}", why="it was detached before it had its rule")
