"""A process of another user is not taken for a holder, session or node, whatever its command line says (finding 26)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.proc_stat import began_at
from headrace.cli.state import end, make_run_folder, process_of, read_states
from headrace.client.discovery import RunState
from headrace.fuse.servers import Role, Servers
from tests.integration.cli.host import Host, wait_until
from tests.security.nobody import BECOME_NOBODY

pytestmark = pytest.mark.root


Imitate = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def imitate() -> Iterator[Imitate]:
    """Start processes of another user with a command line of its choice, that print when they get SIGTERM."""
    started: list[subprocess.Popen[bytes]] = []
    yield lambda *words: _imitator(words, started)
    for process in started:
        process.kill()
        process.wait()


def _imitator(words: tuple[str, ...], started: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    program = (
        f"import signal; {BECOME_NOBODY}; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
        "print('.', flush=True); signal.sigwait([signal.SIGTERM]); print('terminated')"
    )
    process = subprocess.Popen([sys.executable, "-c", program, "-P", "-m", *words], stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b".\n"
    return process


def untouched(process: subprocess.Popen[bytes]) -> bool:
    alive = process.poll() is None
    process.kill()
    return process.communicate()[0] == b"" and alive


def test_down_ends_no_imitator(host: Host, imitate: Imitate) -> None:
    """`down` by root sent SIGTERM to whatever process was called like a holder."""
    host.put("a", 100)
    up = host.up()
    for pid in (up.pid, up.ready["fd_store_pid"], up.ready["session_pid"], up.ready["node_pid"]):
        os.kill(pid, signal.SIGKILL)
    up.process.wait()
    imitators = [
        imitate(f"headrace.fuse.{word}", "--mountpoint", str(host.mount))
        for word in ("holder", "session_main")
    ]
    host.ok("down", str(host.mount))
    assert [untouched(imitator) for imitator in imitators] == [True, True]
    assert not os.path.ismount(host.mount)


def test_up_follows_no_imitator(host: Host, imitate: Imitate) -> None:
    """`up` took it for the holder that had taken over, and then for a session, which it killed."""
    truth = host.put("a", 100)
    up = host.up()
    imitators = [
        imitate(f"headrace.fuse.{word}", "--mountpoint", str(host.mount))
        for word in ("holder", "session_main")
    ]
    for pid in (up.ready["fd_store_pid"], up.ready["session_pid"]):
        os.kill(pid, signal.SIGKILL)
    read = subprocess.run(["cat", host.mount / "a"], capture_output=True, timeout=30)
    logs = [path.read_text() for path in host.run_folder.glob("*.log")]
    assert (read.stdout, read.stderr) == (truth, b""), logs
    (state,) = read_states(str(host.run_folder))
    wait_until(lambda: read_states(str(host.run_folder))[0].fd_store_pid != up.ready["fd_store_pid"])
    (state,) = read_states(str(host.run_folder))
    assert state.fd_store_pid not in [imitator.pid for imitator in imitators]
    assert [untouched(imitator) for imitator in imitators] == [True, True]
    host.ok("down", str(host.mount))
    assert up.wait() == 0


def test_a_pid_that_went_to_another_process_is_not_signalled(imitate: Imitate) -> None:
    process = imitate("headrace", "up")
    state = RunState(kind="up", pid=process.pid, socket="", began=began_at(process.pid) - 1)
    assert (state.alive(), process_of(state)) == (False, -1)
    assert end(process_of(state), 0)
    assert untouched(process)


def test_another_user_has_no_lock(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run = tmp_path / "run"
    make_run_folder(str(run))
    servers = Servers.open(str(run), "/mnt/data")
    program = (
        f"from headrace.fuse.servers import Servers; {BECOME_NOBODY}; Servers.open({str(run)!r}, '/mnt/data')"
    )
    ended = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE)
    assert b"PermissionError" in ended.stderr
    assert not servers.any()
    servers.close()


def test_each_lock_is_of_one_mount_and_role(tmp_path: Path) -> None:
    data = Servers.open(str(tmp_path), "/mnt/data")
    other = Servers(data.fd, "/mnt/other")
    ready, ours = os.pipe()

    def enter() -> None:
        data.enter(Role.SESSION)
        os.write(ours, b".")

    process = subprocess.Popen(["sleep", "60"], pass_fds=(data.fd,), preexec_fn=enter)
    try:
        assert os.read(ready, 1) == b"."
        assert data.pids(Role.SESSION) == [process.pid]
        assert (data.pids(Role.FD_STORE), other.any()) == ([], False)
        pidfd = data.pidfd(Role.SESSION, process.pid)
        assert (pidfd >= 0, data.pidfd(Role.FD_STORE, process.pid)) == (True, -1)
        assert end(pidfd, 10)
        assert process.wait() == -signal.SIGTERM
        assert data.pids(Role.SESSION) == []
    finally:
        process.kill()
        process.wait()
        for fd in (ready, ours, data.fd):
            os.close(fd)
