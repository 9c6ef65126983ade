"""A fork of the server that has imported Headrace is the process that an exec starts (`tests/fork_server.py`)."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server
from tests.fork_server import ForkingPopen
from tests.integration.cli.host import Host, wait_until

pytestmark = pytest.mark.usefixtures("needs_root", "needs_fuse")
STATUS = ("PPid", "Umask", "Uid", "CapEff", "SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "Seccomp")
ENVIRONMENT = {"PATH": "/usr/bin", "HEADRACE_NAME": "é", "EMPTY": ""}


class Started:
    """A node process that waits for its configuration, in a pipe that nobody writes to."""

    def __init__(self, kind: type[subprocess.Popen[bytes]], folder: Path) -> None:
        settings = fork_server.program_settings(dict(os.environ))
        with open(folder / "file", "wb") as file:
            self.process = kind(
                [sys.executable, "-P", "-m", "headrace.node", "--config-json", str(folder / "pipe")],
                stdin=subprocess.DEVNULL,
                stderr=file,
                pass_fds=[file.fileno()],
                cwd=folder,
                env={**ENVIRONMENT, **settings},
                start_new_session=True,
            )

    def read(self, name: str) -> bytes:
        return Path(f"/proc/{self.process.pid}/{name}").read_bytes()

    def describe(self) -> dict[str, Any]:
        """Return what others see of the process."""
        status = dict(line.split(b":", 1) for line in self.read("status").splitlines())
        return {
            "words": self.read("cmdline"),
            "environment": sorted(self.read("environ").split(b"\0")),
            "directory": os.readlink(f"/proc/{self.process.pid}/cwd"),
            "program": os.readlink(f"/proc/{self.process.pid}/exe"),
            "name": self.read("comm"),
            "limits": self.read("limits"),
            "leads its session": os.getsid(self.process.pid) == self.process.pid,
            **{name: status[name.encode()] for name in STATUS},
            "files": self._files(),
        }

    def _files(self) -> dict[str, str]:
        folder = f"/proc/{self.process.pid}/fd"
        return {fd: os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    os.mkfifo(tmp_path / "pipe")
    umask = os.umask(0o027)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, limits[1]))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.umask(umask)


def test_a_fork_is_as_an_executed_process(place: Path) -> None:
    executed, forked = Started(subprocess.Popen, place), Started(ForkingPopen, place)
    try:
        for name in ("cmdline", "environ"):  # at once, as Popen returns after the exec
            assert sorted(forked.read(name).split(b"\0")) == sorted(executed.read(name).split(b"\0"))
        wait_until(
            lambda: executed.describe() == forked.describe(),
            hint=lambda: f"{forked.describe()} instead of {executed.describe()}",
        )
    finally:
        for started in (executed, forked):
            started.process.kill()
            assert started.process.wait(10) == -9


def test_output_and_status(place: Path) -> None:
    for words in (["ls", "/nowhere"], ["--version"], ["lod"], ["status", "--help"]):
        command = [sys.executable, "-m", "headrace", *words]
        options: dict[str, Any] = {"cwd": place, "env": os.environ | {"HEADRACE_RUN_FOLDER": str(place)}}
        executed = subprocess.run(command, capture_output=True, check=False, **options)
        forked = fork_server.run(command, capture_output=True, **options)
        assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
        assert forked.stderr == executed.stderr


def test_the_processes_of_up_are_its_children(host: Host) -> None:
    up = host.up()
    children = Path(f"/proc/{up.pid}/task/{up.pid}/children")
    processes = {host.pid_of("node"), host.pid_of("holder")}
    (twin,) = set(map(int, children.read_text().split())) - processes
    assert processes < set(map(int, children.read_text().split()))
    assert b"fork_server" in Path(f"/proc/{twin}/cmdline").read_bytes()
    up.signal(9)
    assert up.wait() == -9
    wait_until(lambda: not os.path.exists(f"/proc/{twin}/fd/0"))


def test_what_a_fork_can_not_imitate_is_executed() -> None:
    connection = fork_server.server_connection()
    assert connection is not None
    environment = dict(os.environ)
    assert connection.can_fork(environment)
    for name in ("HEADRACE_FAILPOINT", "PYTHONPATH", "LC_ALL"):
        assert not connection.can_fork(environment | {name: "/other"})
    assert fork_server.parse_command([sys.executable, "-m", "headrace", "ls"]) == ("headrace", ["ls"])
    for words in (["-m", "http.server"], ["-c", "pass"], ["-I", "-m", "headrace"]):
        assert fork_server.parse_command([sys.executable, *words]) is None
    assert fork_server.parse_command(["/usr/bin/python3", "-m", "headrace"]) is None
