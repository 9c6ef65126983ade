"""The machine: processes with a time limit, mounts that always go away, page cache, memory of a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGE_BYTES = 8 << 20
PAGE_REPORTING = Path("/sys/module/page_reporting/parameters/page_reporting_order")
NO_PAGE_REPORTING = "11"
"""Free blocks of 2^11 pages and more are reported; the kernel has none."""
_TOUCH = """
import mmap, sys
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
mmap.mmap(-1, int(sys.argv[1]), flags=flags).close()
"""
VENV_BIN = os.path.dirname(sys.executable)


class NotRunError(Exception):
    """A contender can't be measured; the text says why and is printed in the table."""


def tool(name: str) -> str:
    """Return the program's path, the virtual environment first. NotRunError when there is none."""
    beside = os.path.join(VENV_BIN, name)
    path = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if path is None:
        raise NotRunError(f"{name} is not installed")
    return path


def run(command: list[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """Runs to the end and returns standard output. NotRunError on failure or when the time is up."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise NotRunError(f"{os.path.basename(command[0])} did not end in {timeout_s:.0f} s") from None
    except BaseException:
        stop(process)  # it may have processes and folders of its own to end
        raise
    if process.returncode != 0:
        last = (err or out).strip().splitlines()[-1:] or ["no output"]
        raise NotRunError(f"{os.path.basename(command[0])} exit {process.returncode}: {last[0][:300]}")
    return out


def run_worker(program: str, *words: object, timeout_s: float, env: Mapping[str, str] | None = None) -> Any:
    """Runs a Python file with these words, and returns the JSON value that its last line is. As `run` otherwise."""
    command = [sys.executable, program, *map(str, words)]
    return json.loads(run(command, timeout_s=timeout_s, env=env).strip().splitlines()[-1])


def kill_group(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(5)  # a process stuck in a dead mount can't be waited for
    except subprocess.TimeoutExpired:
        pass


def stop(process: subprocess.Popen[str] | subprocess.Popen[bytes], *, grace_s: float = 10) -> None:
    """SIGTERM to the process, SIGKILL to its group after `grace_s`."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
    kill_group(process)


def is_mounted(path: str) -> bool:
    with open("/proc/self/mounts") as mounts:
        return any(line.split()[1] == path for line in mounts)


def unmount(path: str) -> None:
    for _ in range(3):
        if not is_mounted(path):
            return
        subprocess.run(["umount", "-l", path], stderr=subprocess.DEVNULL, timeout=10, check=False)


def wait_until(ready: Callable[[], bool], *, timeout_s: float, name: str) -> None:
    end = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > end:
            raise NotRunError(f"{name} not ready in {timeout_s:.0f} s")
        time.sleep(0.02)


def drop_page_cache() -> None:
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as control:
        control.write("3")


@contextmanager
def link(gbit: int) -> Iterator[None]:
    """Let the loopback device be no faster than this; 0 leaves it alone. NotRunError where tc or the kernel can't."""
    if not gbit:
        yield
        return
    tc = [tool("tc"), "qdisc"]
    run(
        [
            *tc,
            "replace",
            "dev",
            "lo",
            "root",
            "tbf",
            "rate",
            f"{gbit}gbit",
            "burst",
            "4mb",
            "latency",
            "50ms",
        ],
        timeout_s=10,
    )
    try:
        yield
    finally:
        run([*tc, "del", "dev", "lo", "root"], timeout_s=10)


@contextmanager
def memory_kept() -> Iterator[str]:
    """Keep free memory from the host of a virtual machine while it lasts; yield a remark on it.

    Where free page reporting is on, each page that was free for some seconds is taken back by the host, and its next
    touch costs up to ten times a later one (0.3 against 3 s of processor time a GiB were seen). Some hundred MiB are
    exempt: who needs little memory beside its file hardly pays, who needs more pays all of it.
    """
    try:
        before = PAGE_REPORTING.read_text()
        PAGE_REPORTING.write_text(NO_PAGE_REPORTING)
    except OSError:
        yield "memory: free page reporting is not there, or can't be switched off"
        return
    try:
        touch_memory(_free_bytes() * 3 // 4)
        yield "memory: free page reporting switched off for the run, free memory touched before it"
    finally:
        PAGE_REPORTING.write_text(before)


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def touch_memory(size: int) -> None:
    """Takes so many bytes of memory, writes to them and gives them back."""
    run([sys.executable, "-S", "-c", _TOUCH, str(size)], timeout_s=180)


def memory_bytes(pid: int) -> dict[str, int]:
    """Resident memory of one process: all of it (`rss`) and what only the process itself holds (`anon`)."""
    wanted = {"VmRSS": "rss", "RssAnon": "anon"}
    fields: dict[str, int] = {}
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            key, _, rest = line.partition(":")
            if key in wanted:
                fields[wanted[key]] = int(rest.split()[0]) * 1024
    return fields


def discard(folder: str) -> None:
    """Frees the space of a folder that is not needed any more: its large files go now, the small ones when the run
    ends. ext4 looks at every inode deleted in the last minutes before it gives out one: who creates files after
    another's thousands were deleted would pay for it (up to 0.6 ms a file, seen on Linux 6.18)."""
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            if os.lstat(path).st_size > LARGE_BYTES:
                os.unlink(path)


@dataclass
class Workplace:
    """A temporary folder, and what has to be undone at the end, newest first."""

    root: str
    undo: ExitStack = field(default_factory=ExitStack)
    folders: int = 0

    @classmethod
    def create(cls, parent: str | None) -> Workplace:
        place = cls(tempfile.mkdtemp(prefix="headrace-bench-", dir=parent))
        place.undo.callback(place._remove)
        return place

    def folder(self, name: str) -> str:
        """A new empty folder; the number makes it unique."""
        self.folders += 1
        path = os.path.join(self.root, f"{self.folders:03d}-{name}")
        os.makedirs(path)
        return path

    def log(self, name: str) -> int:
        return os.open(os.path.join(self.root, f"{name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def log_tail(self, name: str) -> str:
        path = Path(self.root, f"{name}.log")
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        return lines[-1][:300] if lines else "no log"

    def _remove(self) -> None:
        with open("/proc/self/mounts") as mounts:
            below = [line.split()[1] for line in mounts if line.split()[1].startswith(self.root + "/")]
        for path in reversed(below):
            unmount(path)
        shutil.rmtree(self.root, ignore_errors=True)
