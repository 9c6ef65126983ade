"""A host whose mount has exclusive directories."""

from __future__ import annotations

import pytest

from tests.integration.persist.conftest import MakeHost, Writer, host, make_host, settled, tree_of

__all__ = ["MakeHost", "Writer", "host", "make_host", "settled", "tree_of"]


@pytest.fixture(autouse=True)
def _needs_root(needs_fuse: None) -> None:
    """Mark all tests here."""
