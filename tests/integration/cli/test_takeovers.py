"""Processes of a mount that are killed while they start each other."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.cli.host import LIMIT_S, Host, one_each, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(240)]

READ_ON = """
import os, sys
path, truth, stop = sys.argv[1:]
with open(truth, "rb") as file:
    body = file.read()
reads = 0
while not os.path.exists(stop):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == body
    reads += 1
print(reads)
"""


@pytest.mark.parametrize("io", ["splice", "passthrough"])
def test_no_read_fails_when_a_session_dies_while_it_starts_a_holder(
    host: Host, io: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.integration.cli.host.ForkingPopen", subprocess.Popen
    )  # they start as everywhere
    choice = random.Random(io)
    host.put("a", 200_000)
    up = host.up(host.truth, host.mount, "--io", io)
    stop = host.base / "stop"
    words = [sys.executable, "-c", READ_ON, str(host.mount / "a"), str(host.truth / "a"), str(stop)]
    readers = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    (log,) = host.run_folder.glob("*.log")
    for _ in range(12):
        session, holder, size_bytes = host.wait_pid("session"), host.wait_pid("holder"), log.stat().st_size
        os.kill(holder, signal.SIGKILL)
        await_text(log, "starting another", size_bytes)
        time.sleep(choice.uniform(0, 0.004))  # kills before, during and after the start
        os.kill(session, signal.SIGKILL)
        host.wait_pid("session", other_than=session)
        host.assert_right()
    wait_until(lambda: one_each(host), hint=lambda: str(host.processes()))
    stop.touch()
    for reader in readers:
        output, errors = reader.communicate(timeout=LIMIT_S)
        assert (reader.returncode, errors) == (0, b"") and int(output) > 0
    host.ok("down", str(host.mount))
    assert up.wait() == 0


def await_text(path: Path, text: str, start: int) -> None:
    """Return soon after a file has a text behind this position."""
    limit_s = time.monotonic() + LIMIT_S
    with path.open("rb") as file:
        while text.encode() not in os.pread(file.fileno(), 1 << 20, start):
            assert time.monotonic() < limit_s
