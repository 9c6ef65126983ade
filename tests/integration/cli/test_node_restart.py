"""Reads of a mount while its node is killed and started again: they wait, and see no error."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]


def test_a_read_of_what_is_not_cached_waits_for_the_node(tmp_path: Path) -> None:
    host = Host(tmp_path)
    try:
        for name in ("cached", "missing", "large"):
            host.put(name, (3 << 20) + 5 if name == "large" else 5000)
        host.up()
        host.assert_right("cached")
        node = host.pid_of("node")
        assert node is not None
        os.kill(node, signal.SIGKILL)
        host.assert_right("cached", "missing", "large")
        assert host.wait_pid("node", other_than=node)
    finally:
        host.close()
