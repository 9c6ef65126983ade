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
        for end in range(1, len(path) + 1):
            lines.setdefault(path[:end], line)
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
