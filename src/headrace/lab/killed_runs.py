"""End what a killed run of tests, or of a benchmark, leaves: processes, mounts, network namespaces, and directories.

A process that is killed runs nothing to its end, and the hosts that it started are sessions of their own. So each
process of pytest, and each benchmark, has a guard beside it, which waits for its death. All that the process starts has
a variable of its environment with a word of this run. After an orderly end of pytest the guard touches nothing: what a
test leaves then is its defect.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Set
from pathlib import Path

MARK = "RUN_OF_HEADRACE"
PIPE_BYTES = 1 << 20
"""Size of the pipe with the names of directories. The guard reads it at the end only."""
WITHIN_S = 30.0
"""Seconds for which processes are killed that others start meanwhile."""
_PARENTS = (tempfile.gettempdir(), "/dev/shm", "/var/tmp")
_TEMPORARY = re.compile(
    rf"(?:{'|'.join(map(re.escape, _PARENTS))})/headrace-[a-z0-9-]+-[a-z0-9_]{{8}}(?=/|$)"
)
"""A directory that tempfile.mkdtemp made for tests, a server or a lab. Those of servers have the number of the process
that started them: the kernel ends servers with it, so nobody would find their directories by them."""
_OWN, _REMOVED, _OTHERS = b"+", b"x", b"-"
"""Prefixes of the directories that this process tells its guard: its own, those of them that are removed, and those of
other runs."""
_RUN_FOLDER = re.compile(r"HEADRACE_RUN_FOLDER=(/.+)")


class Guard:
    """The guard of this process, from now on until `end`. Without that, it cleans also after an orderly end."""

    def __init__(self) -> None:
        mark = secrets.token_hex(8)
        unmarked = {name: value for name, value in os.environ.items() if name != MARK}
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, mark, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=unmarked,  # the guard of another process must not kill this one
            start_new_session=True,
            cwd="/",
        )
        os.environ[MARK] = mark
        assert self._process.stdin is not None
        fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for folder in temporary_folders():
            self._tell(_OTHERS, folder)

    def add_folder(self, folder: Path, *, is_removed: bool = False) -> None:
        """Unmount what is mounted below a directory, too, after this process was killed. is_removed: remove it then."""
        self._tell(_REMOVED if is_removed else _OWN, str(folder))

    def _tell(self, kind: bytes, folder: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(kind + os.fsencode(folder) + b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End the guard, as this process ends in order."""
        self._process.kill()
        self._process.communicate()


def wait_for_death(pid: int) -> None:
    """Wait until a process has ended. Its descriptors don't say that: programs that it forked have them, too."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    if os.getppid() == pid:
        select.select([process], [], [])
    os.close(process)


def temporary_folders() -> set[str]:
    """Return the directories that exist and may be a test's."""
    paths = {os.path.join(parent, name) for parent in _PARENTS for name in os.listdir(parent)}
    return {path for path in paths if _TEMPORARY.fullmatch(path)}


def clean(
    mark: str, folders: set[str], others: set[str], *, pid: int, removed: Set[str] = frozenset()
) -> None:
    """Kill the processes with a mark, and remove what they used. folders: in which mounts may be left. others: the
    temporary directories of other runs. pid: of the process that was killed. removed: directories to remove, too."""
    texts = _killed(mark) | {path for path in temporary_folders() if f"-{pid}-" in path}
    temporary = {match[0] for text in texts for match in _TEMPORARY.finditer(text)} - others | removed
    places = folders | temporary
    unmount_below(places)
    run_folders = {match[1] for text in texts if (match := _RUN_FOLDER.fullmatch(text))}
    above = {str(parent) for folder in run_folders for parent in Path(folder).parents}
    _remove_networks({folder for folder in above if _is_below(folder, places)} | _directories_below(places))
    for folder in temporary:
        shutil.rmtree(folder, ignore_errors=True)


def _killed(mark: str) -> set[str]:
    """Kill the processes with a mark. Return the texts in which they name files."""
    texts: set[str] = set()
    end_s, quiet = time.monotonic() + WITHIN_S, 0
    while quiet < 3 and time.monotonic() < end_s:  # one that was not killed yet may have started another
        marked = dict(marked_processes(mark))
        texts.update(*marked.values())
        quiet = 0 if marked else quiet + 1
        for pid in marked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    return texts


def marked_processes(mark: str) -> Iterator[tuple[int, set[str]]]:
    """Yield the processes with a mark, with their variables, their words, and their directory."""
    word = f"{MARK}={mark}"
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                place = Path("/proc", name)
                texts = set(os.fsdecode((place / "environ").read_bytes()).split("\0"))
                if word in texts:
                    words = os.fsdecode((place / "cmdline").read_bytes()).split("\0")
                    yield int(name), {*texts, *words, os.readlink(place / "cwd")}


def _is_below(path: str, folders: set[str]) -> bool:
    from headrace.base.namespace_path import is_at_or_below

    return any(is_at_or_below(path, folder) for folder in folders)


def unmount_below(folders: set[str]) -> None:
    from headrace.base.mount_table import mount_table
    from headrace.fuse import device

    for row in reversed(mount_table()):
        if _is_below(row.mountpoint, folders):
            device.unmount(row.mountpoint, detach=True, abort=row.kind == device.FSTYPE)


def _directories_below(folders: set[str]) -> set[str]:
    """Return the directories of tests, and those in them: one may be of a lab whose nodes did not run yet."""
    below = {path for folder in folders for depth in range(1, 4) for path in Path(folder).glob("*/" * depth)}
    return folders | {str(path) for path in below if not path.is_symlink()}


def _remove_networks(folders: set[str]) -> None:
    """Remove the networks of labs. A lab names its network by its directory."""
    from headrace.lab.network import Namespaces

    for folder in folders:
        Namespaces(folder, 0).remove()


def _main(mark: str, pid: int) -> None:
    wait_for_death(pid)
    os.set_blocking(0, False)
    lines = (sys.stdin.buffer.read() or b"").splitlines()
    own, removed, others = (
        {os.fsdecode(line[1:]) for line in lines if line.startswith(kind)}
        for kind in (_OWN, _REMOVED, _OTHERS)
    )
    clean(mark, own, others, pid=pid, removed=removed)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
