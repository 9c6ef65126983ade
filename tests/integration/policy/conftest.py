"""Provide a host with a mount."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host


@pytest.fixture
def host(needs_fuse: None, tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, sync_interval_s=3600)
    yield host
    host.close()
