"""Match paths of the namespace with patterns as .gitignore has them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from pathspec import PathSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

PATTERN_CHARACTERS_MAX = 1024
WILDCARDS_MAX = 5
"""Most wildcards of a pattern, with two for each `**` that is not at its end. The time of a match grows with a power of
their number, and others choose the names of files."""
_NOT_LITERAL = frozenset("*?[\\")
"""Wildcards, and what takes the meaning from one."""
_SET_OPERATORS, _BACKSLASH = re.compile(r"[\[&~|]"), r"\\\g<0>"
_LAST_SPACES = re.compile(r"(?<!\\)((?:\\\\)*) +\Z")
"""Spaces at the end that have no backslash before them, which git drops."""
_LIBRARY_END = "|$)"
_END = r"|\Z)"
_BRACKETS = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
"""A character with a backslash, or an expression in brackets."""
_GIT_BRACKETS = re.compile(r"\\.|\[[!^]?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*(?:\]|\Z)", re.DOTALL)
"""The same, as git reads it: a bracket with a backslash before it is no end."""
_UNLIKE_GIT = re.compile(r"\\|\[:")
"""Matches what brackets may not have: the library takes a backslash and a class, as [:alpha:], for plain characters."""


class PathPatterns:
    """The patterns of one rule: the last one that matches counts, and `!` before it excludes.

    texts: the patterns as they were written. depends_on_names: whether files of one directory may differ. literals:
    paths without a wildcard, which may be files. directories: paths whose whole content a pattern names without a
    wildcard, such as /a of /a/**, and the literals.
    Raises ValueError for a pattern that is none.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        for pattern in patterns:
            _check(pattern)
        self.texts = tuple(patterns)
        # The other backends read the text of an expression alone, without its flags.
        self._spec = PathSpec([_compiled(pattern) for pattern in patterns], backend="simple")
        positive = [_trimmed(pattern).removeprefix("!") for pattern in patterns]
        by_name = [pattern for pattern in positive if not pattern.endswith(("/**", "/"))]
        self.literals = frozenset(
            os.fsencode("/" + pattern.strip("/"))
            for pattern in by_name
            if "/" in pattern.rstrip("/") and not _NOT_LITERAL & set(pattern)
        )
        self.directories = self.literals | frozenset(
            os.fsencode("/" + pattern.removesuffix("**").strip("/"))
            for pattern in positive
            if pattern.endswith(("/**", "/"))
            and (pattern.startswith("/") or "/" in pattern.rstrip("/"))
            and not _NOT_LITERAL & set(pattern.removesuffix("**"))
        )
        self.depends_on_names = len(self.literals) < len(set(by_name))

    def match(self, path: bytes) -> bool:
        """Return whether a path matches. path: absolute; a directory ends with a slash."""
        return self._spec.match_file(os.fsdecode(path))


def _check(pattern: str) -> None:
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern has {len(pattern)} characters: {PATTERN_CHARACTERS_MAX} are allowed")
    if pattern.startswith("#") or not pattern.strip() or pattern.strip() == "!":
        raise ValueError(f"{pattern!r} is no pattern")
    if "\0" in pattern:
        raise ValueError(f"{pattern!r} has a character that no path has")
    if pattern.rstrip(" ")[-1].isspace():  # git keeps it, and the library does not
        raise ValueError(f"{pattern!r} ends with white space that is no space: write ? for it")
    brackets = [match[0][1:] for match in _GIT_BRACKETS.finditer(pattern) if match[0].startswith("[")]
    if any(map(_UNLIKE_GIT.search, brackets)):
        raise ValueError(f"{pattern!r} has a backslash or a class in brackets: write the characters")
    wildcards = pattern.removesuffix("/**").count("*")  # so ** counts twice
    if wildcards > WILDCARDS_MAX:
        raise ValueError(f"{pattern!r} has more than {WILDCARDS_MAX} wildcards (** counts as two)")


def _trimmed(pattern: str) -> str:
    return _LAST_SPACES.sub(r"\1", pattern)


def _compiled(pattern: str) -> GitIgnoreSpecPattern:
    """Return a compiled pattern. Two things differ from git in the library's own expressions, by which a user could
    evade a rule. Newlines are special: `.` matches none, and `$` matches before the last. Brackets match a slash."""
    try:
        regex, include = GitIgnoreSpecPattern.pattern_to_regex(_trimmed(pattern))
        if regex is None and "[" not in pattern:
            return GitIgnoreSpecPattern(None)
        if regex is None:
            raise ValueError("a bracket has no end")  # git ignores such a pattern
        if regex.endswith(_LIBRARY_END):  # its one `$` that is no literal
            regex = regex.removesuffix(_LIBRARY_END) + _END
        return GitIgnoreSpecPattern(re.compile(_BRACKETS.sub(_no_slash, regex), re.DOTALL), include)
    except (ValueError, IndexError, re.error) as error:
        hint = r", write \[ for a bracket in a name" if "[" in pattern else ""
        raise ValueError(f"{pattern!r} is no pattern of .gitignore{hint}") from error


def _no_slash(match: re.Match[str]) -> str:
    """Return the expression that matches the same but a slash. Characters that sets may get a meaning for are escaped
    (Python warns of them)."""
    text = match[0]
    if text.startswith("\\") or text == "[^/]":
        return text
    return f"(?!/)[{_SET_OPERATORS.sub(_BACKSLASH, text[1:])}"
