"""Tables on a terminal of any width: each value stays readable."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli.render import print_rows

ROWS = [
    {"seal": "imagenet@1", "id": "0123456789abcdef" * 4, "files": 5, "mounted": "/mnt/data/imagenet"},
    {"seal": "imagenet@2", "id": "fedcba9876543210" * 4, "files": 1_281_167, "mounted": ""},
]
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=40)


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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(("name", "value"), NAMES)), min_size=1, max_size=5),
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
