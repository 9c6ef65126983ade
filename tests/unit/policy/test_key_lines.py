"""The lines of keys are those that an editor shows."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.key_lines import KEY_DOTS_MAX, KeyPath, key_lines, line_of, line_of_long_key

TEXT = '''# a comment = 1
first = "a = b # c"

[tables."with.dot"]   # comment [x]
key = """
several = 1
[lines]
"""
list = [
  "]", # ]
  { inner = 1 },
]
'literal' = 'x'
a.b.c = 3
[[array]]
one = 1
[[array]]
two = 2
[array.sub]
three = 3
'''


def test_lines_of_all_kinds_of_keys() -> None:
    tomllib.loads(TEXT)
    lines = key_lines(TEXT)
    table = ("tables", "with.dot")
    assert lines[("first",)] == 2
    assert lines[table] == 4
    assert lines[(*table, "key")] == 5
    assert lines[(*table, "list")] == 9
    assert lines[(*table, "literal")] == 13
    assert lines[(*table, "a", "b", "c")] == 14
    assert lines[("array", 0)] == 15 and lines[("array", 0, "one")] == 16
    assert lines[("array", 1)] == 17 and lines[("array", 1, "two")] == 18
    assert lines[("array", 1, "sub", "three")] == 20


def test_a_key_without_a_line_has_that_of_its_table() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("array", 1, "four", "five")) == 17
    assert line_of(lines, ("nothing",)) == 1


LONG_KEY = "a." * (KEY_DOTS_MAX + 1) + "b"


@pytest.mark.parametrize(
    "line",
    [
        f"{LONG_KEY} = 1",
        f"[{LONG_KEY}]",
        LONG_KEY.replace(".", " . ") + " = 1",
        LONG_KEY.replace("a", '"a"') + " = 1",
        'x = {y = """a"""", ' + LONG_KEY + " = 1}",
        "x = {y = '''a''''', " + LONG_KEY + " = 1}",
        'x = {y = "\\"", ' + LONG_KEY + " = 1}",
        "x = {y = '\\', " + LONG_KEY + " = 1}",
    ],
)
def test_a_key_with_too_many_dots_has_its_line(line: str) -> None:
    tomllib.loads(line)
    assert line_of_long_key(f"{TEXT}{line}\n") == TEXT.count("\n") + 1


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"{'a.' * KEY_DOTS_MAX}b = 1.5",
        f'"{LONG_KEY}" = 1 # {LONG_KEY}',
        f'a = """\n{LONG_KEY}\\"""{LONG_KEY}"""',
        f"a = '''\n{LONG_KEY}'''",
        f"a = [{'1.5, ' * 50}]\n" + "a.b = 1\n" * 50,
        'a = "',
        'a = """',
    ],
)
def test_dots_of_strings_comments_and_numbers_make_no_key_long(text: str) -> None:
    assert line_of_long_key(text) is None


def lines_run(work: Callable[[str], object], text: str) -> int:
    """Count the lines of its module that the work at a text runs."""
    count, module = 0, key_lines.__code__.co_filename

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == module else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("work", [key_lines, line_of_long_key])
def test_the_work_grows_with_the_length_of_the_text(work: Callable[[str], object]) -> None:
    table = f"[{'.'.join('abcdefghijklmnop')}]\n"
    short, long = (table + "".join(f"k{index} = 1\n" for index in range(count)) for count in (100, 400))
    assert lines_run(work, long) < 4.5 * lines_run(work, short)


def test_a_string_of_escapes_is_read_once() -> None:
    assert lines_run(line_of_long_key, '"' + '\\"' * 2000) < 10 * 2000


def test_only_new_paths_of_a_key_are_looked_at() -> None:
    deep = ".".join("abcdefghijklmnop")
    keys = "".join(f"k{index} = 1\n" for index in range(100))
    in_deep, in_flat = (lines_run(key_lines, f"[{table}]\n{keys}") for table in (deep, "a"))
    assert in_deep < 1.5 * in_flat


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
VALUES = st.sampled_from(
    ['"a=b"', "'#'", "3", '[\n"]", # [\n"b"]', '"""\na = [\n"""', "{ x = 1 }", "'''\n\"'''"]
)


def quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


TABLES = st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=5)


@given(TABLES)
def test_each_key_of_any_document_has_its_line(tables: dict[str, dict[str, str]]) -> None:
    written: list[str] = []
    expected: dict[KeyPath, int] = {}
    for name, values in tables.items():
        expected[(name,)] = "\n".join([*written, ""]).count("\n") + 1
        written.append(f"[{quoted(name)}] # = [")
        for key, value in values.items():
            expected[(name, key)] = "\n".join([*written, ""]).count("\n") + 1
            written.append(f"{quoted(key)} = {value}")
    text = "\n".join(written)
    tomllib.loads(text)
    assert key_lines(text) == expected
