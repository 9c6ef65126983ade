"""The index has what this node put to an origin, in whatever order the puts of a batch come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.model import Kind, Version
from tests.unit.namespace.tree_fixture import NamespaceFixture

VERSION = Version(5, 7, '"a"')


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[NamespaceFixture]:
    fixture = NamespaceFixture(tmp_path / "index")
    yield fixture
    fixture.index.close(clean=False)


def kinds(tree: NamespaceFixture, *paths: bytes) -> list[Kind | None]:
    entries = [tree.namespace.tree.entry_at(path) for path in paths]
    return [None if entry is None else entry.kind for entry in entries]


def test_files_of_one_directory_are_recorded_together(tree: NamespaceFixture) -> None:
    paths = [b"/d/e/%d" % number for number in range(20)] + [b"/top"]
    tree.namespace.changes.record_puts([(path, VERSION, None) for path in paths])
    assert kinds(tree, b"/d/e", *paths) == [Kind.DIRECTORY, *[Kind.FILE] * 21]


def test_a_file_in_the_place_of_a_directory_of_the_same_batch(tree: NamespaceFixture) -> None:
    paths = [b"/d/e/f", b"/d/e", b"/d/e/g", b"/d", b"/d/e/h"]
    tree.namespace.changes.record_puts([(path, VERSION, None) for path in paths])
    assert kinds(tree, b"/d", b"/d/e", b"/d/e/f", b"/d/e/g", b"/d/e/h") == [
        *(Kind.DIRECTORY, Kind.DIRECTORY, None, None, Kind.FILE)
    ]
