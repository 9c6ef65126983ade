"""What all tests of a node that writes need."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _needs_root() -> Iterator[None]:
    """And the umask of this process is afterwards what it was: a session takes it."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for whiteouts")
    mask = os.umask(0o022)
    yield
    os.umask(mask)
