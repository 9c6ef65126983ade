"""Implements `headrace policy`: sets, shows, explains and tries the policy of the cluster."""

from __future__ import annotations

import getpass
import os
import random
import socket as sockets
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.errors import MissingExtraError, PathNotFoundError, PolicyConflictError, UsageError
from headrace.base.printable import printable
from headrace.base.sizes import show_size
from headrace.cli import options
from headrace.cli.render import print_json, print_rows, say, warn
from headrace.policy.limits import POLICY_AUTHOR_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.policy.document import PolicyDocument
    from headrace.wire.message import Message
    from headrace.wire.policy_messages import PolicyOutcome, PolicyShown

File = Annotated[
    str, typer.Argument(metavar="FILE", help="File with the policy in TOML; - for standard input.")
]
_FILE_BYTES_MAX = 1 << 20
CHANGE_ATTEMPTS = 16
"""Attempts to change the policy while others change it, too. Each failure means that another one succeeded."""
PAUSE_MAX_S = 0.5


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Set rules for what the cache keeps, and how fresh it is.\n\ndocs/policies.md has the language.",
        no_args_is_help=True,
    )
    for name, command in (
        ("set", set_),
        ("show", show),
        ("rule", rule),
        ("history", history),
        ("rollback", rollback),
        ("explain", explain),
        ("try", try_),
        ("check", check),
        ("advise", advise),
    ):
        group.command(name)(command)
    app.add_typer(group, name="policy")


def set_(
    file: File,
    base: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION", help="Version that FILE was made from. Another version in force is an error."
        ),
    ] = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Put a policy in force on all nodes.

    A policy with faults is refused, and all of them are printed. All nodes check it.
    """
    from headrace.wire.policy_messages import PolicySet

    text = _read(file)
    check_text(text, file)
    shown = _ask(PolicySet(text, author=_author(), base=base), socket, cache)
    _warn_of(shown.unanswered, "it did not check the policy")
    _warn_all(shown.warnings)
    _print(shown, f"version {shown.number} of the policy is in force", as_json=json)


def rule(
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN", help="Paths that the rule is for, as in `.gitignore`, such as /datasets/**."
        ),
    ],
    effects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EFFECT=VALUE...", help="Effects that the rule sets, such as `ttl=2d` or `tier=nvme,hdd`."
        ),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the rule that an earlier command made for PATTERN.")
    ] = False,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Set one rule of the policy, or remove it.

    It takes the place of an earlier rule of this command for the same pattern. The rest of the policy stays as it is.
    """
    from headrace.policy.rule_text import parse_effects, with_rule, without_rule

    if remove == bool(effects):
        raise UsageError(
            f"rule for {pattern}",
            why="it needs effects, or --remove",
            hint="headrace policy rule '/datasets/**' ttl=2d",
        )
    values = parse_effects(effects or [])
    change_policy(
        lambda text: without_rule(text, pattern) if remove else with_rule(text, pattern, values),
        socket,
        cache,
        json=json,
    )


def change_policy(
    change: Callable[[str], str], socket: str | None, cache: str | None, *, json: bool | None
) -> None:
    """Put a changed text of the policy in force. change: called anew with the text of each version that others set
    meanwhile. Raise UsageError for a text with faults, and PolicyConflictError after many of them. json: how to print
    it; None: not at all."""
    for attempt in range(1, CHANGE_ATTEMPTS + 1):
        try:
            shown = _change_once(change, socket, cache)
            break
        except PolicyConflictError:
            if attempt == CHANGE_ATTEMPTS:
                raise
            time.sleep(random.uniform(0, min(PAUSE_MAX_S, 0.01 * 2**attempt)))
    _warn_of(shown.unanswered, "it did not check the policy")
    _warn_all(shown.warnings)
    if json is not None:
        _print(shown, f"version {shown.number} of the policy is in force", as_json=json)


def policy_text(socket: str | None, cache: str | None) -> str:
    """Return the text of the policy in force."""
    from headrace.wire.policy_messages import PolicyAsk

    return _ask(PolicyAsk(), socket, cache).text


def _change_once(change: Callable[[str], str], socket: str | None, cache: str | None) -> PolicyShown:
    from headrace.wire.policy_messages import PolicyAsk, PolicySet

    before = _ask(PolicyAsk(), socket, cache)
    text = change(before.text)
    check_text(text, "rule")
    return _ask(PolicySet(text, author=_author(), base=before.number), socket, cache)


def show(
    version: Annotated[
        int,
        typer.Argument(metavar="VERSION", help="Version to print.", min=0, show_default="the one in force"),
    ] = 0,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the policy, so that it can be written to a file."""
    from headrace.wire.policy_messages import PolicyAsk

    shown = _ask(PolicyAsk(version), socket, cache)
    if not shown.number and not json:
        warn("no policy was set: the configuration decides everything")
        return
    if not json and not sys.stdout.isatty():
        sys.stdout.write(shown.text)  # as it is, for a file
        return
    _print(shown, shown.text, as_json=json)


def history(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """List the versions that are kept, the one in force last."""
    from headrace.wire.policy_messages import PolicyAsk

    versions = _ask(PolicyAsk(), socket, cache).versions
    if json:
        print_json(
            [
                {"number": version.number, "author": version.author, "set_at_s": version.set_at_s}
                for version in versions
            ]
        )
        return
    rows = [
        {
            "version": str(version.number),
            "set": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(version.set_at_s)),
            "by": version.author,
        }
        for version in versions
    ]
    print_rows(rows, as_json=False, right=("version",))


def rollback(
    version: Annotated[
        int,
        typer.Argument(
            metavar="VERSION",
            help="Version to return to.",
            min=0,
            show_default="the one before that in force",
        ),
    ] = 0,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Put an earlier version in force again, as a new version."""
    from headrace.wire.policy_messages import PolicyRollBack

    shown = _ask(PolicyRollBack(version, author=_author()), socket, cache)
    _warn_all(shown.warnings)
    _print(shown, f"version {shown.number} of the policy is in force", as_json=json)


def explain(
    path: options.Path,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print what the policy means for a path.

    Each effect comes with the rule and the line that decided it.
    """
    import msgspec

    from headrace.cli.request import ask
    from headrace.cli.target import find_target
    from headrace.wire.policy_messages import PolicyExplain, PolicyExplained

    target = find_target(socket, cache, path)
    answer = ask(PolicyExplain(os.fsencode(target.path)), target.socket, None)
    assert isinstance(answer, PolicyExplained)
    if json:
        print_json([msgspec.to_builtins(decision) for decision in answer.decisions])
        return
    rows = [
        {
            "effect": decision.effect,
            "value": decision.value,
            "decided by": f"rule {decision.rule}, line {decision.line}"
            if decision.rule
            else f"line {decision.line}"
            if decision.line
            else decision.source,
        }
        for decision in answer.decisions
    ]
    print_rows(rows, as_json=False)


def try_(
    file: File,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print what a policy would change for cached files.

    Nothing changes. The files of all nodes count: one that two nodes have cached counts twice.
    """
    import msgspec

    from headrace.cli.request import ask
    from headrace.policy.limits import TRIAL_LIMIT_S_MAX
    from headrace.wire.policy_messages import PolicyTried, PolicyTry

    text = _read(file)
    check_text(text, file)
    answer = ask(PolicyTry(text, TRIAL_LIMIT_S_MAX), socket, cache)
    assert isinstance(answer, PolicyTried)
    _warn_of(answer.unanswered, "its files are not counted")
    _warn_all(answer.warnings)
    if json:
        print_json({"outcomes": msgspec.to_builtins(answer.outcomes), "unanswered": answer.unanswered})
    elif answer.outcomes:
        print_rows(
            [_columns(outcome) for outcome in answer.outcomes],
            as_json=False,
            right=("files", "size", "copies"),
        )
    else:
        say("no cached file would be treated in another way")


def advise(socket: options.Socket = None, cache: options.CacheOf = None, json: options.Json = False) -> None:
    """Say what another cache size or policy would do.

    The reads of programs on this host since its node started are the base.
    """
    import msgspec

    from headrace.cli.request import ask
    from headrace.wire.policy_messages import PolicyAdvise, PolicyAdvised

    answer = ask(PolicyAdvise(), socket, cache)
    assert isinstance(answer, PolicyAdvised)
    if json:
        print_json(
            {"outlooks": msgspec.to_builtins(answer.outlooks), "advice": msgspec.to_builtins(answer.advice)}
        )
        return
    sizes = sorted({size for row in answer.outlooks for size in row.hits}, key=float)
    rows = [
        {
            "of": row.name or "cache",
            "reads": str(row.reads),
            "files read": show_size(row.unique_bytes),
            "space": show_size(row.capacity_bytes),
            **{f"hits at {size}": f"{row.hits[size]:.1%}" if size in row.hits else "-" for size in sizes},
        }
        for row in answer.outlooks
    ]
    print_rows(rows, as_json=False, right=tuple(rows[0])[1:])
    for advice in answer.advice:
        say(f"{advice.subject}: {advice.text}")


def check(file: File, json: options.Json = False) -> None:
    """Check a policy without a node, and print all its faults."""
    document = check_text(_read(file), file)
    counts = {
        "rules": len(document.rules),
        "tenants": len(document.tenants),
        "origins": len(document.origins),
    }
    if json:
        print_json(counts)
    else:
        say(
            ", ".join(
                f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in counts.items()
            )
        )


def _ask(request: Message, socket: str | None, cache: str | None) -> PolicyShown:
    from headrace.cli.request import ask
    from headrace.wire.policy_messages import PolicyShown

    answer = ask(request, socket, cache)
    assert isinstance(answer, PolicyShown)
    return answer


def _warn_of(unanswered: dict[str, str], effect: str) -> None:
    """Name the nodes that did not answer."""
    for node, why in sorted(unanswered.items()):
        warn(f"{node if node == 'this node' else f'node {node}'} does not answer: {effect} ({why})")


def _warn_all(lines: list[str]) -> None:
    for line in lines:
        warn(line)


def _print(shown: PolicyShown, text: str, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        print_json(
            {
                "number": shown.number,
                "text": shown.text,
                "versions": msgspec.to_builtins(shown.versions),
                **({"unanswered": shown.unanswered} if shown.unanswered else {}),
            }
        )
    else:
        for line in text.expandtabs().splitlines():
            say(line)


def _columns(outcome: PolicyOutcome) -> dict[str, str]:
    return {
        "effect": outcome.effect,
        "before": outcome.before,
        "after": outcome.after,
        "files": str(outcome.files),
        "size": show_size(outcome.bytes),
        "copies": f"{outcome.copies:+d}" if outcome.copies else "",
        "for example": outcome.example,
    }


def check_text(text: str, file: str) -> PolicyDocument:
    """Return the policy of a file. Print a line for each fault, and raise UsageError, if it has some."""
    from headrace.policy.document import PolicyFaultsError, parse_policy

    try:
        return parse_policy(text, _canonical_url)
    except PolicyFaultsError as error:
        for fault in error.faults:
            warn(f"{file}:{fault.line}: {fault.text}")
        count = len(error.faults)
        raise UsageError(
            f"policy {file}", why=f"{count} fault{'s' if count > 1 else ''}", hint="the policy in force stays"
        ) from None


def _canonical_url(url: str) -> str:
    """Return the one form of all URLs of an origin. The node may have a driver that this host has not, so such a URL
    stays as it is. Raises UsageError for a URL of no origin."""
    from headrace.origin.factory import parse_origin

    try:
        return parse_origin(url)
    except MissingExtraError:
        return url


def _read(file: str) -> str:
    """Return the text of a file. Raises PathNotFoundError and UsageError."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_FILE_BYTES_MAX + 1)
        else:
            with open(file, "rb") as opened:
                data = opened.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise PathNotFoundError(f"policy {file}", why="there is no such file") from error
    except OSError as error:
        raise UsageError(f"policy {file}", why=error.strerror or str(error)) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"policy {file}", why=f"line {line} is not UTF-8") from error


def _author() -> str:
    """Return who sets a policy, for its history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name, as in many containers
        user = f"uid {os.geteuid()}"
    return printable(f"{user}@{sockets.gethostname()}")[:POLICY_AUTHOR_MAX]
