"""Tables on a terminal of any width: each value stays readable."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli import bench, job_progress
from headrace.cli.render import print_rows
from headrace.wire.messages import JobState

ROWS = [
    {"seal": "imagenet@1", "id": "0123456789abcdef" * 4, "files": 5, "mounted": "/mnt/data/imagenet"},
    {"seal": "imagenet@2", "id": "fedcba9876543210" * 4, "files": 1_281_167, "mounted": ""},
]
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=40)
NAMED_VALUES = st.builds(lambda name, value: {"name": name, "value": value}, NAMES, NAMES)
"""In this order: fixed_dictionaries changes it now and then."""


class Terminal(io.StringIO):
    """Stands for a terminal, and keeps what is printed."""

    def isatty(self) -> bool:
        return True


def printed(rows: Sequence[Mapping[str, Any]], columns: int) -> list[str]:
    """Return the lines of a table on a terminal of so many columns."""
    terminal = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        for name, value in {"COLUMNS": str(columns), "LINES": "25", "TERM": "dumb", "NO_COLOR": "1"}.items():
            patch.setenv(name, value)
        print_rows(rows, as_json=False, right=("files",))
    return terminal.getvalue().splitlines()


@pytest.mark.parametrize("columns", [20, 60])
def test_a_table_that_does_not_fit_is_printed_as_blocks(columns: int) -> None:
    assert printed(ROWS, columns) == [
        "seal     imagenet@1",
        f"id       {ROWS[0]['id']}",
        "files    5",
        "mounted  /mnt/data/imagenet",
        "",
        "seal     imagenet@2",
        f"id       {ROWS[1]['id']}",
        "files    1281167",
        "mounted",
    ]


@pytest.mark.parametrize("columns", [64, 80, 120])
def test_a_table_that_fits_folds_long_values(columns: int) -> None:
    lines = printed(ROWS, columns)
    assert lines[0].split() == ["seal", "id", "files", "mounted"]
    assert all(cell_len(line) <= columns for line in lines)
    assert [line.split()[0] for line in lines if line.startswith("imagenet")] == ["imagenet@1", "imagenet@2"]


@pytest.mark.parametrize("columns", [5, 80])
def test_each_value_is_in_its_column(columns: int) -> None:
    rows = [{"name": "a", "value": "1"}, {"value": "2", "name": "b"}]
    words = [line.split() for line in printed(rows, columns)]
    assert words == (
        [["name", "value"], ["a", "1"], ["b", "2"]]
        if columns == 80
        else [["name", "a"], ["value", "1"], [], ["name", "b"], ["value", "2"]]
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(NAMED_VALUES, min_size=1, max_size=5),
    st.integers(10, 200),
)
def test_the_name_of_a_row_is_whole_and_a_folded_value_has_a_column_to_read(
    rows: list[dict[str, str]], columns: int
) -> None:
    lines = printed(rows, columns)
    words = [word for line in lines for word in line.split()]
    assert all(row["name"] in words for row in rows)
    for row in rows:
        parts = [row["value"]] if row["value"] in words else [row["value"][:20]]
        assert all(any(word.startswith(part) for word in words) for part in parts)


def on_terminal(words: Sequence[str], columns: int, environment: Mapping[str, str]) -> list[str]:
    """Run a command on a terminal of so many columns, which no variable names. Return its lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    command = [sys.executable, "-m", "headrace", *words]
    output = b""
    with (
        subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process,
        os.fdopen(ours, "rb", buffering=0) as terminal,
    ):
        os.close(theirs)
        try:
            while chunk := terminal.read(65536):
                output += chunk
        except OSError:  # what a terminal reports at the end
            pass
        assert process.wait(60) == 0, output
    return output.decode().splitlines()


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_terminal_without_abilities_has_its_width_too(term: str, tmp_path: Path) -> None:
    """Rich takes each terminal with TERM=dumb for one of 80 columns."""
    (tmp_path / "headrace.toml").write_text('[mounts."/"]\nurl = "/data"\n')
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": term, "NO_COLOR": "1", "HEADRACE_RUN_FOLDER": str(tmp_path)}
    lines = on_terminal(["config", "show", "--config", f"{tmp_path}/headrace.toml"], 30, environment)
    assert sum(line.startswith("setting ") for line in lines) > 10, "blocks, not a table"


def test_a_terminal_without_abilities_has_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "dumb")
    with job_progress._progress("load", is_shown=True) as show:
        show(JobState(False, 1, 2, 10, 20, 0, [], listing=True))
    with bench._bar("data set", quiet=False) as advance:
        advance(5, 10)
        advance(10, 10)
    assert terminal.getvalue() == ""
