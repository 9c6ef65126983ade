"""A fork of the server that has imported Headrace is the process that an exec starts (`tests/fork_server.py`)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.fuse.servers import Role, Servers
from tests import fork_server
from tests.fork_server import ForkingPopen
from tests.integration.cli.host import Host, wait_until

pytestmark = pytest.mark.usefixtures("needs_root", "needs_fuse")
STATUS = ("PPid", "Umask", "Uid", "CapEff", "SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "Seccomp")
PASSED_FD = 450
ENVIRONMENT = {"PATH": "/usr/bin", "HEADRACE_NAME": "é", "EMPTY": ""}


class Started:
    """A node process that waits for its configuration, in a pipe that nobody writes to."""

    def __init__(self, kind: type[subprocess.Popen[bytes]], folder: Path) -> None:
        settings = fork_server.program_settings(dict(os.environ))
        with open(folder / "file", "wb") as file:
            # one number for both: threads of earlier tests close files meanwhile
            fd = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, PASSED_FD)
            assert fd == PASSED_FD
            self.process = kind(
                [sys.executable, "-P", "-m", "headrace.node", "--config-json", str(folder / "pipe")],
                stdin=subprocess.DEVNULL,
                stderr=file,
                pass_fds=[fd],
                cwd=folder,
                env={**ENVIRONMENT, **settings},
                start_new_session=True,
            )
            os.close(fd)

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
        folder, files = f"/proc/{self.process.pid}/fd", {}
        for fd in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # it was open only for an import
                files[fd] = os.readlink(f"{folder}/{fd}")
        return files


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
            assert started.process.wait(60) == -9


def test_output_and_status(place: Path) -> None:
    for words in (["ls", "/nowhere"], ["--version"], ["lod"], ["status", "--help"]):
        command = [sys.executable, "-m", "headrace", *words]
        options: dict[str, Any] = {"cwd": place, "env": os.environ | {"HEADRACE_RUN_FOLDER": str(place)}}
        executed = subprocess.run(command, capture_output=True, check=False, **options)
        forked = fork_server.run(command, capture_output=True, **options)
        assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
        assert forked.stderr == executed.stderr


PROGRAM = """
import os, sys
print(__name__, sys.argv, sys.path[0], os.getcwd(), sys.modules["__main__"].__dict__ is globals())
sys.exit(len(sys.argv) if sys.argv[1:] != ["text"] else "a text")
"""


def test_programs_and_scripts(place: Path) -> None:
    """Arguments, first path of modules, output and status are those of an executed Python."""
    script = place / "script.py"
    script.write_text(PROGRAM)
    for words in (["-c", PROGRAM, "a", "b"], ["-c", PROGRAM, "text"], [str(script), "a"], ["-c", "1 / 0"]):
        command = [sys.executable, *words]
        executed = subprocess.run(command, capture_output=True, check=False, cwd=place)
        forked = fork_server.run(command, capture_output=True, cwd=place)
        assert (forked.returncode, forked.stdout) == (executed.returncode, executed.stdout)
        assert forked.stderr.splitlines()[-1:] == executed.stderr.splitlines()[-1:]


def test_a_failpoint_ends_a_fork(place: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from headrace.base.failpoint import hit; hit('a'); hit('b'); print('on')",
    ]
    for step, status in (("b", -signal.SIGKILL), ("a:2", 0), ("", 0)):
        forked = fork_server.run(command, env=os.environ | {"HEADRACE_FAILPOINT": step}, capture_output=True)
        assert forked.returncode == status


def test_a_fork_runs_what_a_host_runs_first(place: Path) -> None:
    first = place / fork_server.FIRST
    first.mkdir()
    (first / "sitecustomize.py").write_text("import time\ntime.time = lambda: 5.0\n")
    environment = os.environ | {"PYTHONPATH": str(first)}
    connection = fork_server.server_connection()
    assert connection is not None and connection.can_fork(environment)
    command = [sys.executable, "-c", "import sys, time; print(time.time(), sys.stdin.read())"]
    options: dict[str, Any] = {"env": environment, "input": b"text", "capture_output": True}
    executed = subprocess.run(command, check=False, **options)
    assert fork_server.run(command, **options).stdout == executed.stdout == b"5.0 text\n"


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


class SessionStatus:
    """Holds what others see of the session of a mount, but for its mountpoint."""

    def __init__(self, host: Host, mountpoint: Path) -> None:
        with contextlib.closing(Servers.open(str(host.run_folder), str(mountpoint))) as servers:
            (self.pid,) = servers.pids(Role.SESSION)
            (self.fd_store_pid,) = servers.pids(Role.FD_STORE)
        with open(f"/proc/{self.pid}/status", "rb") as lines:
            status = dict(line.split(b":", 1) for line in lines)
        self.fields = {name: status[name.encode()] for name in STATUS if name != "PPid"}
        self.parent_pid = int(status[b"PPid"])
        self.leads_its_session = os.getsid(self.pid) == self.pid
        self.words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")[:4]
        self.files = len(os.listdir(f"/proc/{self.pid}/fd"))


@pytest.mark.expected_warnings("the FD store died, starting another")
def test_a_forked_session_is_as_an_executed_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock, parent, process session and status; an FD store that is killed leaves both sessions serving."""
    mountpoints = [host.base / "executed", host.base / "forked"]
    for mountpoint in mountpoints:
        mountpoint.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(fork_server, "parse_command", lambda _: None)
        host.up(host.truth, mountpoints[0], cache=f"{host.base / 'other-cache'}:1GiB")
    host.up(host.truth, mountpoints[1])
    executed, forked = (SessionStatus(host, mountpoint) for mountpoint in mountpoints)
    assert [forked.fields, forked.words, forked.files] == [executed.fields, executed.words, executed.files]
    for session in (executed, forked):
        assert session.parent_pid == session.fd_store_pid
        assert session.leads_its_session
        os.kill(session.fd_store_pid, signal.SIGKILL)
    for mountpoint in mountpoints:
        host.assert_right(mount=mountpoint)


def test_a_network_namespace_and_a_function_before_exec(place: Path) -> None:
    """A fork enters the namespace as nsenter does, and takes the lock that a function before exec takes."""
    name = f"fork-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    command = ["nsenter", f"--net=/run/netns/{name}", sys.executable, "-P", "-m", "headrace.node"]
    command += ["--config-json", str(place / "pipe")]
    lock_fd = os.open(place, os.O_RDONLY)
    servers = Servers(lock_fd, "/mnt")
    process = ForkingPopen(
        command, pass_fds=[lock_fd], preexec_fn=functools.partial(servers.enter, Role.SESSION)
    )
    try:
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0] == sys.executable.encode()
        assert os.stat(f"/proc/{process.pid}/ns/net").st_ino == os.stat(f"/run/netns/{name}").st_ino
        assert servers.pids(Role.SESSION) == [process.pid]
    finally:
        process.kill()
        process.wait(60)
        os.close(lock_fd)
        subprocess.run(["ip", "netns", "del", name], check=True)


def test_what_a_fork_can_not_imitate_is_executed() -> None:
    connection = fork_server.server_connection()
    assert connection is not None
    environment = dict(os.environ)
    assert connection.can_fork(environment)
    for name in ("PYTHONPATH", "LC_ALL"):
        assert not connection.can_fork(environment | {name: "/other"})
    assert fork_server.parse_command([sys.executable, "-m", "headrace", "ls"]) == ("headrace", ["ls"])
    assert fork_server.parse_command([sys.executable, "-m", "tests.a", "b"]) == ("tests.a", ["b"])
    for words in (["-m", "http.server"], ["-I", "-m", "headrace"], ["relative.py"], ["-S", "-c", "pass"]):
        assert fork_server.parse_command([sys.executable, *words]) is None
    assert fork_server.parse_command(["/usr/bin/python3", "-m", "headrace"]) is None
