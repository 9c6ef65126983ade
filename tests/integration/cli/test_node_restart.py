"""Reads of a mount while its node is killed and started again: they wait, and see no error."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.conftest import MakeHost
from tests.integration.cli.host import Host, one_each, wait_until

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


@pytest.mark.timeout(240)
@pytest.mark.parametrize("roles", [("node",), ("holder", "session"), ("gateway",)])
def test_a_start_that_fails_for_want_of_descriptors_is_tried_again(
    make_host: MakeHost, roles: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail as where no process can be forked."""
    monkeypatch.setattr(
        "tests.integration.cli.host.ForkingPopen", subprocess.Popen
    )  # they start as everywhere
    host = make_host(s3_address="127.0.0.1:0", s3_insecure=True)
    host.put("a", 5000)
    up = host.up()
    pids = [pid_of(host, role) for role in roles]
    limits = resource.prlimit(up.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(up.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "Too many open files" in up.said, 60.0, hint=lambda: up.said)
    assert up.process.poll() is None
    resource.prlimit(up.pid, resource.RLIMIT_NOFILE, limits)
    wait_until(
        lambda: all(pid_of(host, role) not in (0, *pids) for role in roles), 60.0, hint=lambda: up.said
    )
    wait_until(lambda: one_each(host), 60.0, hint=lambda: str(host.processes()))
    host.assert_right()
    host.ok("down")
    assert up.wait() == 0
    host.assert_nothing_left()


def pid_of(host: Host, role: str) -> int:
    if role != "gateway":
        return host.pid_of(role)
    return next((pid for pid, words in host.processes().items() if "-m headrace.s3.main " in words), 0)
