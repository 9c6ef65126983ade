"""Prints a value as a table for people, or as JSON for programs. Only tables import Rich."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.base.printable import printable


def say(*lines: str) -> None:
    """Print lines to stdout, with control characters escaped: no name in them adds a line or steers a terminal."""
    _write(*map(printable, lines))


def warn(line: str) -> None:
    """Print a line to stderr, prefixed with the name of the program."""
    sys.stderr.write(f"headrace: {printable(line)}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; bytes that aren't UTF-8 are escaped."""
    _write(json.dumps(value, default=_jsonable))


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, right: Sequence[str] = ()) -> None:
    """Print rows as a table, whose columns are the keys of the first row. right: columns to align right."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        return
    if not sys.stdout.isatty():
        for row in rows:
            _write("\t".join(printable(str(value)) for value in row.values()))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row.values()))
    Console().print(table)


def print_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print each name and its text, aligned."""
    width = max((len(name) for name, _ in lines), default=0)
    for name, text in lines:
        say(f"{name:<{width}}  {text}".rstrip())


def print_tree(tree: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a tree as lines of `a.b  value`."""
    if as_json:
        print_json(tree)
        return
    print_lines(list(_flat(tree, "")))


def _flat(tree: Any, prefix: str) -> list[tuple[str, str]]:
    if isinstance(tree, Mapping) and tree:
        return [
            row
            for key, value in tree.items()
            for row in _flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    if isinstance(tree, list) and tree and isinstance(tree[0], Mapping):
        return [row for number, value in enumerate(tree) for row in _flat(value, f"{prefix}[{number}]")]
    return [(prefix, _shown(prefix, tree))]


def _shown(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in name.rsplit(".", 1)[-1]:
        from headrace.base.sizes import show_size

        return show_size(value) if value < 1024 else f"{show_size(value)} ({value})"
    if value is None or value in ([], {}):
        return "-"
    return str(value)


def _write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    import msgspec

    return msgspec.to_builtins(value)
