"""All tests of a node that writes need these."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.writeback import dirty_set
from tests.model.dataplane.scene import WriterFixture, playing
from tests.model.dataplane.writer_node import RETRY_S


@pytest.fixture(autouse=True)
def _needs_root(needs_root: None) -> Iterator[None]:
    """And the umask of this process is afterwards what it was: a session takes it."""
    mask = os.umask(0o022)
    yield
    os.umask(mask)


@pytest.fixture(autouse=True)
def _failures_are_retried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirty_set, "BACKOFF_S_MAX", RETRY_S)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[WriterFixture]:
    async with playing(tmp_path) as scene:
        yield scene
