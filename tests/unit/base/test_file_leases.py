"""A lease tells whether other processes have a file open, and harms neither them nor its holder."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.file_leases import gets_lease, lease, may_be_open, may_be_written
from headrace.testing.waiting import wait_for

NOBODY = 1 << 30
"""A descriptor that no process has."""
OPENS = """
import sys
print("begun", flush=True)
open(sys.argv[1], "rb").close()
print("opened", flush=True)
"""


@pytest.mark.root
def test_who_may_write_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8192)
    fd = os.open(path, os.O_RDONLY)
    with open(path, "rb") as reader:
        assert not may_be_written(fd)
        assert reader.read(1) == b"x"
    with open(path, "r+b") as file:
        assert may_be_written(fd)
        mapped = mmap.mmap(file.fileno(), 0)
    assert may_be_written(fd)  # by the mapping alone
    mapped.close()
    assert not may_be_written(fd)
    with open(path, "ab"):  # the lease is gone: an open breaks none
        pass
    os.close(fd)


def test_who_has_a_file_open(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8192)
    fd = os.open(path, os.O_RDONLY)
    assert not may_be_open(fd)
    with open(path, "rb"):
        assert may_be_open(fd)
    assert not may_be_open(fd)
    os.close(fd)
    assert may_be_open(NOBODY) and may_be_written(NOBODY), "it can't be determined"


def test_an_open_during_a_lease_waits_and_ends_no_process(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    with lease(fd, fcntl.F_WRLCK):
        program = subprocess.Popen([sys.executable, "-c", OPENS, path], stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        wait_for(lambda: fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK)  # the kernel has sent the signal
    assert program.communicate(timeout=30)[0] == "opened\n"
    assert gets_lease(fd, fcntl.F_WRLCK)
    os.close(fd)
