"""Write rules of the command line into the text of a policy. The rest of the text stays as its author wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from headrace.base.errors import UsageError
from headrace.policy.effects import EFFECT_NAMES

_LISTS = ("tier",)


def parse_effects(words: Sequence[str]) -> dict[str, str]:
    """Return the TOML values of words such as `ttl=2d` by their effects. Values are checked with the policy. Raise
    UsageError for a word that is no effect."""
    effects = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in EFFECT_NAMES:
            raise UsageError(
                f"effect {word!r}", why=f"effects are {', '.join(EFFECT_NAMES)}", hint="write one as ttl=2d"
            )
        if name in effects:
            raise UsageError(f"effect {word!r}", why=f"{name} is given twice")
        effects[name] = _toml(value.split(",")) if name in _LISTS else _toml(value)
    return effects


def with_rule(text: str, pattern: str, effects: Mapping[str, str]) -> str:
    """Return the text with a rule for a pattern, in place of an earlier one of the command line, or at the end.
    effects: TOML values."""
    lines = [f"{_mark(pattern)}\n[[rule]]\nmatch = {_toml([pattern])}\n"]
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


def _block(text: str, pattern: str) -> re.Match[str] | None:
    lines = rf"^{re.escape(_mark(pattern))}\n\[\[rule\]\]\n(?:[a-z]+ = [^\n]*\n?)*"
    return re.search(lines, text, re.MULTILINE)


def _mark(pattern: str) -> str:
    return f"# rule of the command line: {_toml(pattern)}"


def _toml(value: str | list[str]) -> str:
    """Return a value in TOML, whose strings and arrays of strings are those of JSON. Numbers stay numbers."""
    if isinstance(value, str) and value.isdecimal() and value.isascii():
        return str(int(value)) if len(value) < 10 else json.dumps(value)
    return json.dumps(value)
