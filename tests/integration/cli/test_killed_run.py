"""A run of tests that is killed leaves no process, no mount, no network and no directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.mount_table import mount_table
from headrace.lab.network import Namespaces
from tests import killed_runs
from tests.integration.cli.host import wait_until
from tests.killed_runs import MARK

RUN = """
import os, signal, sys, tempfile
from pathlib import Path
from headrace.lab.network import Namespaces
from headrace.testing.servers import server_folder
from tests.integration.cli.host import Host
from tests.killed_runs import Guard

guard = Guard()
if sys.argv[1] != "-":
    guard.add_folder(Path(sys.argv[1]))
base = Path(sys.argv[1] if sys.argv[1] != "-" else tempfile.mkdtemp(prefix="headrace-test-"))
host = Host(base)
host.put("file", 100)
host.up()
network = Namespaces(str(base), 0)
network.make()
network.add(1)
with server_folder(None) as server:
    if sys.argv[2] == "killed":
        print(base, os.environ["TESTS_OF_HEADRACE"], server, flush=True)
        sys.stdin.read()  # until this is killed, or the test is
        os.kill(os.getpid(), signal.SIGKILL)
guard.end()
print(base, os.environ["TESTS_OF_HEADRACE"], server, flush=True)
"""


class Run:
    """A run of tests with a host, a network and the directory of a server. base: the directory of its host. mark: of
    its processes."""

    def __init__(self, folder: str, end: str) -> None:
        root = str(Path(killed_runs.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", RUN, folder, end],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name != MARK} | {"PYTHONPATH": root},
        )
        assert self.process.stdout is not None
        base, self.mark, server = self.process.stdout.readline().split()
        self.base, self._server = Path(base), Path(server)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def left(self) -> list[str]:
        mounts = [row.mountpoint for row in mount_table() if row.mountpoint.startswith(f"{self.base}/")]
        processes = [str(pid) for pid, _ in killed_runs.marked_processes(self.mark)]
        prefix = Namespaces(str(self.base), 0).namespace(1)
        folder = "/run/netns"
        networks = [name for name in os.listdir(folder) if name == prefix] if os.path.isdir(folder) else []
        return [*processes, *mounts, *networks, *([str(self._server)] if self._server.exists() else [])]


@pytest.fixture
def base(needs_fuse: None, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "base"
    folder.mkdir()
    yield folder
    killed_runs.unmount_below({str(folder)})


def test_a_killed_run_leaves_nothing_in_its_temporary_directory(needs_fuse: None) -> None:
    run = Run("-", "killed")
    assert len(run.left()) > 4, "a node, an FD store, a session, a mount and a network"
    run.kill()
    wait_until(lambda: not run.left() and not run.base.exists(), 60, hint=lambda: f"left: {run.left()}")


def test_a_killed_run_leaves_no_mount_in_the_directory_of_its_tests(base: Path) -> None:
    run = Run(str(base), "killed")
    assert len(run.left()) > 4
    run.kill()
    wait_until(lambda: not run.left(), 60, hint=lambda: f"left: {run.left()}")
    assert (base / "truth/file").stat().st_size == 100, "pytest keeps these directories for a while"


def test_what_a_run_leaves_at_an_orderly_end_is_a_defect_that_stays(base: Path) -> None:
    run = Run(str(base), "ended")
    run.process.communicate(timeout=60)
    assert len(run.left()) > 4
    killed_runs.clean(run.mark, {str(base)}, killed_runs.temporary_folders(), pid=run.process.pid)
    assert run.left() == []


def test_directories_of_other_runs_stay(tmp_path: Path) -> None:
    other = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    try:
        before = killed_runs.temporary_folders()
        assert str(other) in before
        mark = "0123456789abcdef"
        process = subprocess.Popen(
            ["sleep", "600"], cwd=other, env={MARK: mark, "HEADRACE_RUN_FOLDER": f"{other}/run"}
        )
        killed_runs.clean(mark, set(), before, pid=process.pid)
        assert process.wait(60) == -signal.SIGKILL
        assert other.exists()
    finally:
        other.rmdir()
