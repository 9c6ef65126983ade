"""Processes of a lab are waited for, whatever else this process has open."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.lab import processes

HIGH = 1100
"""A descriptor that select(2) can't take."""


@pytest.fixture
def high_pidfds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give pidfds as a process gets them that has many files open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[0] != resource.RLIM_INFINITY and limits[0] <= HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 100, limits[1]))
    opened = os.pidfd_open

    def high(pid: int, flags: int = 0) -> int:
        low = opened(pid, flags)
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
        finally:
            os.close(low)

    monkeypatch.setattr(os, "pidfd_open", high)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("high_pidfds")
def test_a_program_with_many_open_files_ends_a_lab(tmp_path: Path) -> None:
    environment = {**os.environ, processes.MARK: str(tmp_path)}
    with subprocess.Popen(["sleep", "1000"], env=environment) as process:
        try:
            processes.end(str(tmp_path), patience_s=60)
            assert processes.marked(str(tmp_path)) == {}
        finally:
            process.kill()
