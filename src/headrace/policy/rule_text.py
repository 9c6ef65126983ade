"""Write rules of the command line into the text of a policy. The rest of the text stays as its author wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from headrace.base.errors import UsageError
from headrace.base.printable import printable
from headrace.policy.document import NOT_OBEYED
from headrace.policy.effects import EFFECT_NAMES

_LISTS = ("tier",)
KNOWN = tuple(name for name in EFFECT_NAMES if name not in NOT_OBEYED)
_OF_COMMAND, _OF_MOUNT = "the command line", "the mount"
_NO_UTF8 = re.compile("[\ud800-\udfff]")
_WILD = re.compile(r"[\\*?\[\]]")


def pattern_below(path: str) -> str:
    """Return the pattern of all files below a path, whose characters stand for themselves."""
    names = [_WILD.sub(r"\\\g<0>", name) for name in path.split("/") if name]
    return "/".join(["", *names, "**"])


def parse_effects(words: Sequence[str]) -> dict[str, str]:
    """Return the TOML values of words such as `ttl=2d` by their effects. Values are checked with the policy. Raise
    UsageError for a word that is no effect."""
    effects = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in KNOWN:
            raise UsageError(
                f"effect {word!r}", why=f"effects are {', '.join(KNOWN)}", hint="write one as ttl=2d"
            )
        if name in effects:
            raise UsageError(f"effect {word!r}", why=f"{name} is given twice")
        effects[name] = _toml(value.split(",")) if name in _LISTS else _toml(value)
    return effects


def with_rule(text: str, pattern: str, effects: Mapping[str, str], *, of_mount: bool = False) -> str:
    """Return the text with a rule for a pattern, in place of an earlier one of the command line, or at the end.
    effects: TOML values. of_mount: the rule ends with the mount of these files."""
    lines = [
        f"{_mark(pattern, _OF_MOUNT if of_mount else _OF_COMMAND)}\n[[rule]]\nmatch = {_toml([pattern])}\n"
    ]
    lines += [f"{name} = {value}\n" for name, value in effects.items()]
    block = "".join(lines)
    earlier = _block(text, pattern)
    if earlier is not None:
        return text[: earlier.start()] + block + text[earlier.end() :]
    if not text:
        return block
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}\n{block}"


def without_rule(text: str, pattern: str) -> str:
    """Return the text without the rule of the command line for a pattern. Raise UsageError if it has none."""
    block = _block(text, pattern)
    if block is None:
        why = "no rule of the command line has that pattern"
        raise UsageError(f"pattern {pattern}", why=why, hint="`headrace policy show` prints all rules")
    return text[: block.start()].removesuffix("\n") + text[block.end() :]


def without_rule_of_mount(text: str, path: str) -> str:
    """Return the text without the rule that ends with the mount at a path, if it has one."""
    pattern = pattern_below(path)
    if _NO_UTF8.search(pattern):
        return text  # no policy names it
    block = _block(text, pattern, (_OF_MOUNT,))
    return text if block is None else without_rule(text, pattern)


def _block(text: str, pattern: str, kinds: Sequence[str] = (_OF_COMMAND, _OF_MOUNT)) -> re.Match[str] | None:
    marks = "|".join(re.escape(_mark(pattern, kind)) for kind in kinds)
    return re.search(rf"^(?:{marks})\n\[\[rule\]\]\n(?:[a-z]+ = [^\n]*\n?)*", text, re.MULTILINE)


def _mark(pattern: str, kind: str) -> str:
    return f"# rule of {kind}: {_toml(pattern)}"


def _toml(value: str | list[str]) -> str:
    """Return a value in TOML. Numbers stay numbers."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_string, value))}]"
    if value.isdecimal() and value.isascii() and len(value) < 10:
        return str(int(value))
    return _toml_string(value)


def _toml_string(text: str) -> str:
    """Return a string in TOML. Raise UsageError for bytes that are not UTF-8."""
    if _NO_UTF8.search(text):
        raise UsageError(
            f"rule {printable(text)}",
            why="a policy is UTF-8, and this is not",
            hint="write a ? for each byte of a name that is not UTF-8",
        )
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char.isprintable() and char not in '"\\':
        return char
    return json.dumps(char)[1:-1] if char <= "\uffff" else f"\\U{ord(char):08x}"
