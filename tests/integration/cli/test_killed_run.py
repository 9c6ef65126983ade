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
from headrace.lab import killed_runs
from headrace.lab.killed_runs import MARK
from headrace.lab.network import Namespaces
from tests.integration.cli.host import wait_until

RUN = """
import os, signal, sys, tempfile
from pathlib import Path
from headrace.lab.killed_runs import Guard
from headrace.lab.network import Namespaces
from headrace.testing.servers import server_folder
from tests.integration.cli.host import Host

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
        print(base, os.environ["RUN_OF_HEADRACE"], server, flush=True)
        sys.stdin.read()  # until this is killed, or the test is
        os.kill(os.getpid(), signal.SIGKILL)
guard.end()
print(base, os.environ["RUN_OF_HEADRACE"], server, flush=True)
"""


class Run:
    """A run of tests with a host, a network and the directory of a server. base: the directory of its host. mark: of
    its processes."""

    def __init__(self, *words: str, script: str = RUN) -> None:
        root = str(Path(__file__).parents[3])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", script, *words],
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


BENCH = """
import argparse, contextlib, os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from nodebench import program
from nodebench.results import Results
from headrace.lab.killed_runs import MARK
from headrace.lab.network import Namespaces

def measure(place):
    folder = place.folder("mounted")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    subprocess.Popen(["sleep", "600"], cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL)
    network = Namespaces(place.root, 0)
    network.make()
    network.add(1)
    print(place.root, os.environ[MARK], place.root, flush=True)
    sys.stdin.read()

program.memory_kept = lambda: contextlib.nullcontext("memory is left as it is")
given = argparse.Namespace(scale=1, repeat=1, json=True, no_write=True)
sys.exit(program.run("guarded", given, Results(), measure, folder=sys.argv[2], goals=lambda _: []))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_benchmark_leaves_nothing(needs_root: None, tmp_path: Path, number: signal.Signals) -> None:
    """Its folder is one that the user named."""
    compare = str(Path(__file__).parents[3] / "bench/compare")
    run = Run(compare, str(tmp_path), script=BENCH)
    assert len(run.left()) >= 3, "a process, a mount and a network"
    run.process.send_signal(number)
    run.process.communicate()
    wait_until(lambda: not run.left() and not run.base.exists(), 60, hint=lambda: f"left: {run.left()}")
    assert list(tmp_path.iterdir()) == []
