"""Find the lines of the keys of a TOML document, which the parser of Python does not tell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]
"""The keys from the top to a value; a table of an array of tables is a number, from 0."""

_TOKEN = re.compile(
    r"""(?P<string>"{3}(?:[^\\]|\\.)*?"{3,5}|'{3}.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
    r"""|(?P<comment>\#[^\n]*)|(?P<open>[\[{])|(?P<close>[\]}])|(?P<line>\n)|(?P<equals>=)|[^"'\#\[\]{}\n=]+""",
    re.DOTALL,
)

KEY_DOTS_MAX = 16
"""Dots of a key: the parser needs time and memory by their square, and no key of a policy has three."""
_MARK = re.compile(r"""\"{3}|'{3}|["'\#.=,\[\]{}\n]""")
# what ends a string or a comment, by its first characters, or is an escape sequence in it
_ENDS = {
    '"""': re.compile(r'\\.|"{3,5}', re.DOTALL),
    "'''": re.compile("'{3,5}"),
    '"': re.compile(r'\\.|"|(?=\n)'),
    "'": re.compile(r"'|(?=\n)"),
    "#": re.compile(r"(?=\n)"),
}


def line_of_long_key(text: str) -> int | None:
    """Return the line of the first key with more than KEY_DOTS_MAX dots; None if there is none. text: need not be
    valid. It is read once, and as the parser reads it up to the first fault."""
    position = dots = 0
    while (match := _MARK.search(text, position)) is not None:
        mark, position = match[0], match.end()
        if mark in _ENDS:
            position = _end_of(text, mark, position)
        elif mark != ".":
            dots = 0
        elif (dots := dots + 1) > KEY_DOTS_MAX:
            return text.count("\n", 0, position) + 1
    return None


def _end_of(text: str, mark: str, position: int) -> int:
    """Return where a string or a comment ends that began with a mark before the position."""
    ends = (match for match in _ENDS[mark].finditer(text, position) if not match[0].startswith("\\"))
    match = next(ends, None)
    return len(text) if match is None else match.end()


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table and key, from 1. text: a valid document, of which each character is read once.
    Keys of inline tables have no line of their own."""
    lines: dict[KeyPath, int] = {}
    arrays: dict[tuple[str, ...], int] = {}
    table: KeyPath = ()
    for statement, line in _statements(text):
        if statement.startswith("["):
            names = _names(statement)
            table = _path_of_table(names, arrays, is_array=statement.startswith("[["))
        else:
            names = _names(_key_of(statement) + "=0")
        path = table if statement.startswith("[") else (*table, *names)
        while path and path not in lines:  # a path has a line once all paths above it have
            lines[path] = line
            path = path[:-1]
    return lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Return the line of a key, or of the nearest table around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _path_of_table(names: list[str], arrays: dict[tuple[str, ...], int], *, is_array: bool) -> KeyPath:
    """Return the path of a table. arrays: the number of tables that each array has so far."""
    if is_array:
        arrays[tuple(names)] = arrays.get(tuple(names), 0) + 1
    path: list[str | int] = []
    for end, name in enumerate(names, 1):
        path.append(name)
        count = arrays.get(tuple(names[:end]))
        if count is not None:
            path.append(count - 1)
    return tuple(path)


def _statements(text: str) -> Iterator[tuple[str, int]]:
    """Yield each table header and each `key = value` with the line where it begins."""
    line = begin = 1
    depth = 0
    parts: list[str] = []
    for match in _TOKEN.finditer(text.replace("\r\n", "\n") + "\n"):
        token = match[0]
        if match["line"] and depth == 0:
            statement = "".join(parts).strip()
            if statement:
                yield statement, begin
            parts = []
        elif not match["comment"]:
            if not parts and not token.strip():
                continue
            if not parts:
                begin = line
            depth += bool(match["open"]) - bool(match["close"])
            parts.append(token)
        line += token.count("\n")


def _key_of(statement: str) -> str:
    """Return the key of a statement: all before the first equals sign outside of strings."""
    parts: list[str] = []
    for match in _TOKEN.finditer(statement):
        if match["equals"]:
            break
        parts.append(match[0])
    return "".join(parts)


def _names(statement: str) -> list[str]:
    """Return the names of a header or of a key."""
    names: list[str] = []
    table: object = tomllib.loads(statement)
    while table and isinstance(table, dict | list):
        if isinstance(table, list):
            table = table[0]
            continue
        name, table = next(iter(table.items()))
        names.append(name)
    return names
