"""Sentences of pages are short, and none has a retired word. Tables, code and decisions are not looked at."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.survey import Module, survey
from tests.tidy.words import RETIRED

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"),
    ]
)
WORDS_MAX = 26
"""A span of code counts as one word."""
_NOT_PROSE = re.compile(r"^```.*?^```|<!--.*?-->|^## Retired names$.*", re.DOTALL | re.MULTILINE)
_NEW_BLOCK = re.compile(r"^\s*([*-]|\d+\.) ")
_SENTENCE_END = re.compile(r"(?<=[.!?:])[)\"]*\s+(?=[^a-z])")


def prose(text: str) -> str:
    """Return the page without code, comments and targets of links. Each line keeps its number."""
    text = _NOT_PROSE.sub(lambda block: "\n" * block[0].count("\n"), text)
    text = re.sub(r"`[^`]*`", lambda code: "CODE" + "\n" * code[0].count("\n"), text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs and the items of lists; not headings and tables."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        ends = not line.strip() or line.lstrip().startswith(("#", "|", "!["))
        if (ends or _NEW_BLOCK.match(line)) and lines:
            yield " ".join(lines)
            lines = []
        if not ends:
            lines.append(_NEW_BLOCK.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    for block in blocks(prose(text)):
        yield from _SENTENCE_END.split(block.replace("**", ""))


def test_sentences_and_words_are_counted_as_a_reader_counts_them() -> None:
    page = "# A title\n\nOne `long call` is\na sentence. Two:\n\n* three four. Five\n| a | b |\n```\nsix seven\n```\n"
    assert list(sentences(page)) == ["One CODE is a sentence.", "Two:", "three four.", "Five"]
    assert RETIRED.search(prose("`goes` is code")) is None
    assert RETIRED.search(prose("it Goes on")) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_is_short(page: Path) -> None:
    counted = [(len(re.findall(r"\S*\w\S*", sentence)), sentence) for sentence in sentences(page.read_text())]
    assert [(count, sentence) for count, sentence in counted if count > WORDS_MAX] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_no_retired_word(page: Path) -> None:
    lines = enumerate(prose(page.read_text()).splitlines(), start=1)
    assert [f"{number}: {word[0]}" for number, line in lines for word in RETIRED.finditer(line)] == []


def test_no_text_of_the_program_has_a_retired_word() -> None:
    """Errors, help and log messages. Docstrings and comments are for readers of the code."""
    assert retired_words.findings_in("") == []


def test_a_retired_word_of_a_text_would_be_found() -> None:
    module = Module("a.py", '"""It goes."""\ntext = "it goes"\nword = "goes"\n')
    assert retired_words.look(module) == ["a.py:2 goes"]


@survey("src/")
def retired_words(module: Module) -> Iterator[str]:
    """Yield those in strings of several words that the program uses, with their lines."""
    docstrings = {id(node.value) for node in module.nodes(ast.Expr)}
    for node in module.nodes(ast.Constant):
        if isinstance(node.value, str) and " " in node.value and id(node) not in docstrings:
            yield from (f"{module.name}:{node.lineno} {word[0]}" for word in RETIRED.finditer(node.value))
