"""The lines of keys are those that an editor shows."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from headrace.policy.key_lines import KeyPath, key_lines, line_of

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
