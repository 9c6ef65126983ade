"""Processes die; readers don't notice."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.base.mount_table import mounted_at
from headrace.fuse import device
from tests.integration.cli.host import send, wait_until
from tests.integration.fuse.conftest import Mounted, Mounter

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]
FILES = {f"f{n}": os.urandom(40_000 + n) for n in range(40)} | {"big": os.urandom(6_000_000)}


class Readers:
    def __init__(self, m: Mounted, count: int = 3) -> None:
        self.errors: list[BaseException] = []
        self.rounds = 0
        self._mount = m.mount
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for name, data in FILES.items():
                    assert (self._mount / name).read_bytes() == data
                self.rounds += 1
        except (OSError, AssertionError) as error:
            self.errors.append(error)

    def passed(self, rounds: int) -> bool:
        return self.rounds > rounds or bool(self.errors)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.errors
        assert not any(thread.is_alive() for thread in self._threads)


def _not_connected(m: Mounted) -> bool:
    try:
        os.statvfs(m.mount)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def _replaced(pids: Callable[[], list[int]], killed: int) -> bool:
    now = pids()
    return bool(now) and killed not in now


@pytest.mark.parametrize("io", ["passthrough", "splice", "noopen"])
def test_no_read_fails_when_sessions_are_killed(mounter: Mounter, io: str) -> None:
    m = mounter(io, FILES, slow_s=0.001, ttl_s=0.05)
    with open(m.mount / "big", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        readers = Readers(m)
        for _ in range(3):
            killed = m.session_pid
            os.kill(killed, signal.SIGKILL)
            wait_until(partial(_replaced, m.session_pids, killed))
            wait_until(partial(readers.passed, readers.rounds + 3), 20)
        readers.stop()
        assert view[:] == FILES["big"]
    assert os.listxattr(m.mount / "f1")


def test_directories_open_across_a_takeover(mounter: Mounter) -> None:
    m = mounter("passthrough", {f"d/{n:05d}": b"" for n in range(5000)})
    with os.scandir(m.mount / "d") as entries:
        names = [next(entries).name for _ in range(100)]
        os.kill(m.session_pid, signal.SIGKILL)
        names += [entry.name for entry in entries]
    assert names == sorted(os.listdir(m.source / "d"))


def test_the_holder_is_replaced(mounter: Mounter) -> None:
    m = mounter("passthrough", FILES)
    readers = Readers(m, 2)
    for _ in range(2):
        before = m.holder_pids()
        os.kill(before[0], signal.SIGKILL)
        wait_until(partial(_replaced, m.holder_pids, before[0]))
    wait_until(lambda: readers.rounds > 2)
    session = m.session_pid
    os.kill(session, signal.SIGKILL)  # and the new holder still starts sessions
    wait_until(lambda: m.session_pids() and m.session_pids() != [session])
    readers.stop()
    os.kill(m.holder_pids()[0], signal.SIGTERM)
    wait_until(lambda: mounted_at(str(m.mount)) is None and not m.session_pids())


def test_stopping_unmounts(mounter: Mounter) -> None:
    m = mounter("passthrough", FILES)
    with open(m.mount / "f1", "rb") as file:  # busy
        m.holder.send_signal(signal.SIGTERM)
        assert m.holder.wait(30) == 0
        assert mounted_at(str(m.mount)) is None
        assert file.read() == FILES["f1"]
    assert not m.session_pids()
    assert os.listdir(m.mount) == []


def test_unmount_by_somebody_else_ends_all(mounter: Mounter) -> None:
    m = mounter("passthrough", FILES)
    assert device.unmount(str(m.mount), detach=False) == 0
    assert m.holder.wait(30) == 0
    assert not m.session_pids()


def test_a_dead_mount_is_cleaned_and_a_living_one_is_busy(mounter: Mounter) -> None:
    m = mounter("passthrough", FILES)
    busy = Mounted(m.folder, "passthrough", allow_failure=True)
    assert busy.ready["error"] == "mount.failed"
    assert "unmount" in busy.ready["hint"]
    busy.holder.wait(30)
    for pid in m.holder_pids() + m.session_pids():
        send(pid, signal.SIGSTOP)
    for pid in m.holder_pids() + m.session_pids():
        os.kill(pid, signal.SIGKILL)
    m.holder.wait(30)
    wait_until(lambda: not m.session_pids())
    wait_until(partial(_not_connected, m))
    again = mounter("passthrough")
    assert (again.mount / "f1").read_bytes() == FILES["f1"]


@pytest.mark.parametrize("kind", ["missing", "file", "full"])
def test_unfit_mountpoints(mounter: Mounter, tmp_path: Path, kind: str) -> None:
    mountpoint = tmp_path / "mnt"
    if kind == "full":
        (mountpoint / "x").touch()
    else:
        mountpoint.rmdir()
    if kind == "file":
        mountpoint.touch()
    m = Mounted(tmp_path, "passthrough", allow_failure=True)
    m.close()
    assert m.ready["error"] == "mount.failed"
    assert m.ready["hint"]
    json.dumps(m.ready)


def test_the_probe_is_quick() -> None:
    """It forks: so in a process of its own."""
    code = "import time; t = time.monotonic(); from headrace.fuse.probe import probe; r = probe()"
    code += "; print(r.works, r.reason, time.monotonic() - t < 10)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "True self-test passed True\n"


def test_a_probe_that_is_killed_leaves_no_mount_and_no_file(tmp_path: Path) -> None:
    """The kill hits between the mount and the test."""
    code = "import os; from headrace.fuse import probe"
    code += "; probe._probe_in = lambda *_: os.kill(os.getpid(), 9); probe.probe()"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    assert "headrace-probe" not in Path("/proc/self/mountinfo").read_text()
    assert list(tmp_path.iterdir()) == []


STOPPED_AT_ONCE = """
import os, signal, sys
from headrace.fuse import device, fd_store

def mount(*words, **options):
    real(*words, **options)
    os.kill(os.getpid(), signal.SIGTERM)

real, device.mount = device.mount, mount
sys.exit(fd_store.run_fd_store(mountpoint=sys.argv[1], socket_path=sys.argv[1] + "-socket"))
"""


def test_an_fd_store_that_is_stopped_when_it_has_mounted_leaves_no_mount(tmp_path: Path) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    done = subprocess.run([sys.executable, "-c", STOPPED_AT_ONCE, mountpoint], timeout=60, check=False)
    is_mounted = str(mountpoint) in Path("/proc/self/mountinfo").read_text()
    device.unmount(str(mountpoint), detach=True)
    assert not is_mounted
    assert done.returncode == 0


SUPERVISED = """
import sys
from headrace.cli import supervise
from headrace.cli.process import MountOptions
from headrace.cli.state import RunState

supervise.FD_STORE_STOP_S = 0.1
folder = sys.argv[1]
state = RunState(
    kind="fuse", pid=0, socket=folder + "/socket", mountpoint=folder + "/mnt", log=folder + "/log"
)
options = MountOptions("auto", allow_other=False, writable=False)
supervise.Supervisor(state, folder + "/run", config=None, mount=options).run(print)
"""


def test_an_fd_store_that_hangs_when_it_has_mounted_leaves_no_mount(tmp_path: Path) -> None:
    """Its node accepts connections and never answers, so it does not become ready."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as node:
        node.bind(str(tmp_path / "socket"))
        node.listen()
        command = [sys.executable, "-c", SUPERVISED, str(tmp_path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor:
            wait_until(lambda: mounted_at(str(mountpoint)) is not None)
            children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
            (fd_store,) = map(int, children.split())
            os.kill(fd_store, signal.SIGSTOP)
            supervisor.terminate()
            _, errors = supervisor.communicate(timeout=60)
    is_mounted = mounted_at(str(mountpoint)) is not None
    device.unmount(str(mountpoint), detach=True)
    assert not is_mounted
    assert "stopped before it was ready" in errors


def test_a_session_that_can_not_end_is_replaced(mounter: Mounter) -> None:
    """Its main thread is dead and another is not, which may wait in the kernel for an answer that nobody else gives:
    so it was when a session was killed while it told the kernel of a name in a folder that was being changed."""
    m = mounter("passthrough", FILES)
    before = m.session_pid
    done = subprocess.run(
        ["stat", m.mount / "main-thread-ends"], capture_output=True, timeout=60, check=False, text=True
    )
    assert "No such file" in done.stderr
    assert m.session_pid != before
    assert (m.mount / "f1").read_bytes() == FILES["f1"]
