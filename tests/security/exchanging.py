"""A user without rights who exchanges a directory, and a file, with links out of the tree, as fast as he can.

He works in the folder of the layer itself and takes no lock: no mount and no gateway could do so as fast.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS = float(os.environ.get("HEADRACE_EXAMPLES", "1"))
USER = 65534
SECRET = b"root:secret-of-the-canary:"
CLOSED = "a name that nobody else may see"
MINE = b"what the user wrote"
_AT = -100
_EXCHANGE = 2


class Canary:
    """A directory of root's, and a file in it, both closed to everybody else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "canary"
        self.folder.mkdir(mode=0o700)
        self.file = self.folder / "f"
        self.file.write_bytes(SECRET)
        self.file.chmod(0o600)
        (self.folder / CLOSED).write_bytes(b"")
        self._state = self._look()

    def _look(self) -> object:
        def state(path: Path) -> tuple[object, ...]:
            status = path.lstat()
            shown = (
                status.st_ino,
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_nlink,
                status.st_ctime_ns,
            )
            return *shown, *os.listxattr(path, follow_symlinks=False)

        return sorted(os.listdir(self.folder)), state(self.folder), state(self.file), self.file.read_bytes()

    def check(self) -> None:
        """Nobody wrote, changed, linked or removed anything of it."""
        assert self._look() == self._state


def make_trap(folder: Path, canary: Canary) -> Path:
    """A folder of the user's: d and l change places, and x and y. Where d is a directory d/f is the user's file."""
    folder.mkdir(parents=True)
    (folder / "d").mkdir()
    for name in ("d/f", "x"):
        (folder / name).write_bytes(MINE)
    (folder / "l").symlink_to(canary.folder)
    (folder / "y").symlink_to(canary.file)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    return folder


@contextlib.contextmanager
def user(work: Callable[[], object], folder: Path) -> Iterator[int]:
    """A process of the user's in a folder, which it need not be able to name; its pid. It is killed in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            work()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def exchange_for_ever() -> None:
    exchange = ctypes.CDLL(None).renameat2
    kept = os.open("d/f", os.O_RDWR)
    while True:
        for name, other in ((b"d", b"l"), (b"x", b"y")):
            exchange(_AT, name, _AT, other, _EXCHANGE)
        os.utime(kept)  # it is to be persisted again


@contextlib.contextmanager
def exchanging(folder: Path, canary: Canary) -> Iterator[Path]:
    """A trap, while the user works on it; and a look at the canary then."""
    make_trap(folder, canary)
    with user(exchange_for_ever, folder):
        yield folder
    canary.check()


def for_a_while(step: Callable[[int], bool], *, least: int = 5) -> None:
    """Steps, until the time is up; so many at least must say that they did what they were asked for."""
    end_s, done, number = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < end_s or (done < least and time.monotonic() < end_s + 30):
        done += step(number)
        number += 1
    assert done >= least, f"{done} of {number} steps did what they were asked for"
