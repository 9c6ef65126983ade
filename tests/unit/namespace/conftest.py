"""A namespace of one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.namespace.tree_fixture import NamespaceFixture


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[NamespaceFixture]:
    fixture = NamespaceFixture(tmp_path / "index")
    yield fixture
    fixture.index.close(clean=False)
