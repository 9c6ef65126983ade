"""A host whose folders other users can come to, as they lie below no private directory of the tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host


@pytest.fixture(scope="module")
def shared_base(needs_fuse: None) -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    base.chmod(0o755)
    yield base
    shutil.rmtree(base)


@pytest.fixture
def host(shared_base: Path) -> Iterator[Host]:
    base = Path(tempfile.mkdtemp(dir=shared_base))
    base.chmod(0o755)
    host = Host(base)
    yield host
    host.close()
