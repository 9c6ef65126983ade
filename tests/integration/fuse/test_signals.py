"""A signal that a program survives interrupts none of its calls; one that ends it ends them, whatever they wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.host import wait_until
from tests.integration.fuse.conftest import Mounted, Mounter

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(60)]
MODES = ["passthrough", "splice", "noopen"]
BIG = os.urandom(5_500_000)
SMALL = os.urandom(90_000)
MORE_THAN_THREADS = 70
"""Calls that fill the session's pool."""

_UNDER_A_TIMER = """
import ctypes, os, signal, sys
C = ctypes.CDLL(None, use_errno=True)
C.read.restype = ctypes.c_ssize_t
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, sys.argv[1] == "interrupts")
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def checked(call, result):
    if result < 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.exit(f"{call}: {os.strerror(ctypes.get_errno())}")
    return result
def read(path):
    fd = checked("open", C.open(path, os.O_RDONLY))
    parts, into = [], ctypes.create_string_buffer(1 << 20)
    while count := checked("read", C.read(fd, into, len(into))):
        parts.append(into.raw[:count])
    C.close(fd)
    return b"".join(parts)
root, out = map(os.fsencode, sys.argv[2:])
listing = checked("opendir", C.open(root + b"/d", os.O_RDONLY | os.O_DIRECTORY))
getdents, names = {"x86_64": 217, "aarch64": 61}[os.uname().machine], ctypes.create_string_buffer(9999)
checked("getdents", C.syscall(getdents, listing, names, 9999))
for name in (b"big", b"small", b"d/deep"):
    checked("stat", C.access(root + b"/" + name, 0))
    with open(out + b"/" + os.path.basename(name), "wb") as copy:
        copy.write(read(root + b"/" + name))
signal.setitimer(signal.ITIMER_REAL, 0)
"""

_CALLS = {
    "read": "fd = os.open(path + '/big', os.O_RDONLY); say(); os.pread(fd, 100, 3 << 20)",
    "map": "fd = os.open(path + '/big', os.O_RDONLY); m = mmap.mmap(fd, 0, prot=1); say(); m[2 << 20]",
    "open": "say(); os.open(path + '/small', os.O_RDONLY)",
    "stat": "say(); os.stat(path + '/d/deep')",
    "list": "say(); os.listdir(path)",
    "many": "say(); [threading.Thread(target=os.stat, args=(f'{path}/n{n}',)).start() for n in range("
    f"{MORE_THAN_THREADS})]",
}
_WAITS = """
import mmap, os, signal, sys, threading
signal.signal(signal.SIGUSR1, lambda *_: None)
path = sys.argv[1]
def say():
    print("calling", flush=True)
"""


@pytest.mark.parametrize("handler", ["interrupts", "restarts"])
@pytest.mark.parametrize("io", MODES)
def test_a_signal_interrupts_nothing_that_waits_for_the_origin(
    mounter: Mounter, io: str, handler: str, tmp_path: Path
) -> None:
    m = mounter(io, {"big": BIG, "small": SMALL, "d/deep": b"deep"}, slow_s=0.02, miss=True)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", _UNDER_A_TIMER, handler, str(m.mount), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        "big": BIG,
        "small": SMALL,
        "deep": b"deep",
    }


class Caller:
    """A process that waits in a call of the mount, or in several."""

    def __init__(self, mounted: Mounted, call: str, *, threads: int = 1) -> None:
        command = [sys.executable, "-c", _WAITS + _CALLS[call], str(mounted.mount)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"calling\n"
        wait_until(lambda: self._waiting() == threads)

    def _waiting(self) -> int:
        """Return how many of its threads wait for an answer of ours, or for a page that another request brings."""
        stacks = [path.read_text() for path in Path(f"/proc/{self.process.pid}/task").glob("*/stack")]
        return sum("request_wait_answer" in stack or "folio" in stack for stack in stacks)

    def ended(self) -> int:
        """Its status, as soon as there is one."""
        status = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGQUIT])
def test_a_fatal_signal_ends_a_call_also_after_one_that_was_not(
    mounter: Mounter, number: signal.Signals
) -> None:
    m = mounter("splice", {"big": BIG, "small": SMALL, "d/deep": b"deep"}, miss=True)
    for name in ("big", "small"):
        (m.mount / name).stat()
    callers = []
    (m.folder / "stuck").touch()
    callers += [Caller(m, call) for call in ("read", "map")]
    (m.folder / "stuck-opens").touch()
    callers += [Caller(m, call) for call in ("open", "stat", "list")]
    for sent in (signal.SIGUSR1, number):
        for caller in callers:
            caller.process.send_signal(sent)
    assert [caller.ended() for caller in callers] == [-number] * len(callers)
    for sign in m.folder.glob("stuck*"):
        sign.unlink()
    assert (m.mount / "big").read_bytes() == BIG


def test_a_killed_caller_ends_behind_others_that_wait(mounter: Mounter) -> None:
    m = mounter(
        "splice", {f"n{number}": b"" for number in range(MORE_THAN_THREADS)} | {"d/deep": b""}, miss=True
    )
    (m.folder / "stuck").touch()
    others, caller = Caller(m, "many", threads=MORE_THAN_THREADS), Caller(m, "stat")
    caller.process.kill()
    assert caller.ended() == -signal.SIGKILL
    assert others.process.poll() is None
    (m.folder / "stuck").unlink()
    assert others.ended() == 0
