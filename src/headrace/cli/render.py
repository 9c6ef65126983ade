"""Prints a value as a table for people, or as JSON for programs. Only tables import Rich."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.base.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

_FOLDED_WIDTH = 20
"""Least width of a column whose cells are folded."""
_GAP = 2
"""Spaces between two columns."""


def say(*lines: str) -> None:
    """Print lines to stdout, with control characters escaped: no name in them adds a line or steers a terminal."""
    _write(*map(printable, lines))


def warn(line: str) -> None:
    """Print a line to stderr, prefixed with the name of the program."""
    with suppress(OSError):  # the disk of a log may be full; what warns continues
        sys.stderr.write(f"headrace: {printable(line)}\n")
        sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON. Bytes that aren't UTF-8 are lone surrogates, as `os.fsdecode` makes them."""
    _write(json.dumps(value, default=_jsonable))


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, right: Sequence[str] = ()) -> None:
    """Print rows as a table, whose columns are the keys of the first row. right: columns to align right. A terminal
    that is too narrow gets a block of lines for each row."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        return
    if not sys.stdout.isatty():
        for row in rows:
            _write("\t".join(printable(str(row[name])) for name in rows[0]))
        return
    from rich.console import Console

    width, height = shutil.get_terminal_size()
    console = Console(width=width, height=height)  # Rich assumes 80 columns for TERM=dumb
    cells = [{name: printable(str(row[name])) for name in rows[0]} for row in rows]
    widths = _least_widths(cells)
    if sum(widths.values()) + _GAP * (len(widths) - 1) > console.width:
        _print_blocks(cells)
    else:
        _print_table(console, cells, widths, right)


def _least_widths(cells: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return the least width of each column in which it can be read: the first one, which names the row, is whole."""
    from rich.cells import cell_len

    widths = {name: max(cell_len(name), *(cell_len(row[name]) for row in cells)) for name in cells[0]}
    first = next(iter(widths))
    return {
        name: width if name == first else min(width, max(_FOLDED_WIDTH, cell_len(name)))
        for name, width in widths.items()
    }


def _print_table(
    console: Console, cells: Sequence[Mapping[str, str]], widths: Mapping[str, int], right: Sequence[str]
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name, width in widths.items():
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*map(Text, row.values()))
    console.print(table)


def _print_blocks(cells: Sequence[Mapping[str, str]]) -> None:
    """Print each row as lines, because the terminal is too narrow for a table."""
    for number, row in enumerate(cells):
        if number:
            _write("")
        print_lines(list(row.items()))


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
    if isinstance(value, float) and name.rsplit(".", 1)[-1] == "created_s":
        return f"{show_time(value)} ({value})"
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def show_time(time_s: float) -> str:
    """Return a time, in seconds since 1970, as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))


def _write(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return os.fsdecode(value)
    import msgspec

    return msgspec.to_builtins(value)
