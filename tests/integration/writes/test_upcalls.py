"""The kernel does this by itself on a file that is open for writing: the session is stopped, and must not be asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]
_WRITES = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b"first", 0)
print("ready", flush=True)
sys.stdin.readline()
for number in range(1000):
    os.pwrite(fd, b"%5d" % number, 5 * number)
print("written", flush=True)
sys.stdin.readline()
"""


def test_a_write_to_an_open_file_asks_nobody() -> None:
    """But the first one, before which the kernel asks whether the file has capabilities to lose."""
    with tempfile.TemporaryDirectory(prefix="headrace-upcalls-") as base:
        host = Host(Path(base))
        try:
            host.up(host.truth, host.mount, "--write", "local", "--io", "passthrough")
            command = [sys.executable, "-c", _WRITES, str(host.mount / "file")]
            writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert writer.stdin is not None
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            session = host.kill("session", signal.SIGSTOP)
            try:
                writer.stdin.write(b"\n")
                writer.stdin.flush()
                assert writer.stdout.readline() == b"written\n"
            finally:
                os.kill(session, signal.SIGCONT)
            writer.communicate(b"\n", timeout=60)
            assert writer.returncode == 0
            assert (host.mount / "file").read_bytes() == b"".join(b"%5d" % number for number in range(1000))
        finally:
            host.close()
