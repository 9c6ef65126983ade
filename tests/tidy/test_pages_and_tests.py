"""Tests, errnos and settings that a page names exist."""

from __future__ import annotations

import errno
import functools
import re
from pathlib import Path

import msgspec
import pytest

from headrace.base.tiers import TIERS
from headrace.config.schema import Config
from headrace.fuse.errno_map import ERRNO

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    files = set(re.findall(r"`(tests/[\w/.]+)`", text))
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
    functions = set(re.findall(r"`(test_\w+)`", text))
    assert sorted(functions - _test_functions()) == []


@functools.cache
def _test_functions() -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for text in texts for name in re.findall(r"def (test_\w+)\(", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    named = set(re.findall(r"`((?:src/headrace/)?[a-z_]+/[a-z_/]+\.py)`", page.read_text()))
    places = (ROOT, ROOT / "src/headrace")
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


def test_every_errno_of_a_mount_is_explained() -> None:
    explained = set(re.findall(r"\bE[A-Z]{2,}\b", (ROOT / "docs/semantics/errors.md").read_text()))
    names = {errno.errorcode[number] for number in ERRNO.values()} | {"ENAMETOOLONG", "ENODATA"}
    names = {"ENOTSUP" if name == "EOPNOTSUPP" else name for name in names}
    assert sorted(names - explained) == []


def test_every_setting_is_in_the_table_of_settings() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert [field.name for field in msgspec.structs.fields(Config) if f"| `{field.name}` |" not in page] == []


def test_tiers_in_examples_are_tiers() -> None:
    words = re.findall(r"/[\w/]+:\d+(?:\.\d+)?[KMGTP]i?B?:(\w+)", "".join(p.read_text() for p in PAGES))
    assert words
    assert set(words) <= set(TIERS)


def test_readme_is_short_and_has_its_place_for_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 150
    assert text.index("<!-- bench:node -->") < text.index("<!-- /bench:node -->")
