"""A host of one test: its own run folder, cache and mountpoints, `headrace` as a user calls it, and nothing left of it.

Whatever may hang on a mount is done by other processes, with a limit: this one never touches a mounted file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.deadline import Deadline
from headrace.base.mount_table import mount_table
from headrace.cli.state import drop_socket
from headrace.client.connection import Connection
from headrace.client.discovery import read_states, running_sockets
from headrace.fuse import device
from headrace.lab import processes
from headrace.seal.mounted import seals_below
from headrace.wire.message import Message
from headrace.wire.messages import PlanList, Report, StatusAsk
from headrace.wire.plan_answers import PlanRows
from tests import fork_server, service_logs
from tests.fork_server import ForkingPopen
from tests.random_bytes import random_bytes

MIB = 1 << 20
LIMIT_S = 30.0
READ_PAUSE_S = 0.0005
"""Between two reads of a thread that reads all the while: without it, one thread takes a whole processor."""
READER = Path(__file__).with_name("reader.py")
STATS = """
import sys
from headrace.cli.main import main

paths = sys.argv[1:]
for path in paths:
    sys.argv = ["headrace", "stat", path, "--json"]
    if status := main():
        sys.exit(status)
    print(end="\\0")
"""


class Up:
    """A supervising process of headrace's that was started; `ready` is what it said."""

    def __init__(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        self.process = process
        self._errors = errors
        self.ready: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """On stderr."""
        return self._errors.read_text()

    def wait_ready(self, limit_s: float = LIMIT_S) -> dict[str, Any]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if readable else b""
        assert line, f"not ready: {self.said}"
        self.ready = json.loads(line)
        return self.ready

    def signal(self, number: int) -> None:
        """SIGSTOP: it stands still on return."""
        send(self.pid, number)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        return self.process.wait(limit_s)


class Host:
    """All below `base`. settings: HEADRACE_* of every command, by the name of the setting."""

    def __init__(self, base: Path, **settings: object) -> None:
        self.base = base
        self.run_folder = base / "run"
        self.truth = base / "truth"  # what the origin holds
        self.cache = base / "cache"
        self.mount = base / "mnt"
        for folder in (self.truth, self.mount):
            folder.mkdir()
        self.environment = os.environ | {
            "HEADRACE_RUN_FOLDER": str(self.run_folder),
            "XDG_CONFIG_HOME": str(base / "config"),
            "XDG_CACHE_HOME": str(base / "home-cache"),
            "COLUMNS": "80",
        }
        for name in [key for key in self.environment if key.startswith("AWS_")]:
            del self.environment[name]
        self.environment |= {f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()}
        self.python = sys.executable
        self._count = 0

    # ------------------------------------------------------------ commands

    def start(self, *words: object, json_: bool = True) -> Up:
        """A command in the background, as a process group of its own."""
        self._count += 1
        service_logs.follow(self, self.logs)
        errors = self.base / f"stderr-{self._count}"
        command = [self.python, "-m", "headrace", *map(str, words), *(["--json"] if json_ else [])]
        with errors.open("wb") as sink:
            process: subprocess.Popen[bytes] = ForkingPopen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=self.environment,
                start_new_session=True,
                cwd=self.base,
            )
        return Up(process, errors)

    def up(self, *words: object, cache: str | None = None) -> Up:
        """`headrace up` of the truth folder, unless words say otherwise; ready on return."""
        origin = words if words else (self.truth, self.mount)
        process = self.start("up", *origin, "--cache", cache or f"{self.cache}:1GiB")
        process.wait_ready()
        return process

    def headrace(self, *words: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        return fork_server.run(
            [self.python, "-m", "headrace", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            cwd=self.base,
        )

    def ok(self, *words: object, limit_s: float = LIMIT_S) -> str:
        done = self.headrace(*words, limit_s=limit_s)
        assert done.returncode == 0, (words, done.returncode, done.stderr)
        return done.stdout

    def json(self, *words: object, status: int = 0, limit_s: float = LIMIT_S) -> Any:
        done = self.headrace(*words, "--json", limit_s=limit_s)
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def stats(self, *names: str) -> list[dict[str, Any]]:
        """Return what `headrace stat --json` prints of paths below the mount, by one process for all."""
        done = fork_server.run(
            [self.python, "-c", STATS, *(self.mount / name for name in names)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=self.base,
        )
        assert done.returncode == 0, (names, done.returncode, done.stderr)
        return [json.loads(text) for text in done.stdout.split("\0")[:-1]]

    def status(self) -> dict[str, Any]:
        """Return what `headrace status --json` prints of the host's only node. The node itself is asked: a process for
        each poll would take most of the processor time of the suite."""
        answer = self._ask(StatusAsk())
        assert isinstance(answer, Report)
        status: dict[str, Any] = answer.status
        return status

    def plans(self, job: str = "") -> list[dict[str, Any]]:
        """Return what `headrace plan show JOB --json` prints, less its estimates, as `status` does."""
        answer = self._ask(PlanList())
        assert isinstance(answer, PlanRows)
        return [msgspec.to_builtins(row) for row in answer.rows if job in ("", row.job)]

    def _ask(self, message: Message) -> object:
        """Return what the host's only node answers."""
        folder = str(self.run_folder)
        wait_until(lambda: running_sockets(folder, read_states(folder)), hint=lambda: "no node answers")
        (socket,) = running_sockets(folder, read_states(folder))
        connection = Connection(socket, role="cli")
        try:
            return connection.ask(message, deadline=Deadline.after(LIMIT_S))
        finally:
            connection.close()

    # ------------------------------------------------------------ files

    def put(self, name: str, size_bytes: int, seed: int = 0) -> bytes:
        """A file of random bytes at the origin, replaced as a whole."""
        data = random_bytes(f"{name} {seed}", size_bytes)
        path = self.truth / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(data)
        new.rename(path)
        return data

    def read(
        self, *names: str, mode: str = "read", mount: Path | None = None, limit_s: float = LIMIT_S
    ) -> dict[str, dict[str, Any]]:
        """By another process, held against the truth: name → bytes, error, wrong (the offset, -1 for none)."""
        done = fork_server.run(
            [sys.executable, READER, mode, mount or self.mount, self.truth, *names],
            capture_output=True,
            timeout=limit_s,
        )
        done.check_returncode()
        return {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}

    def assert_right(
        self, *names: str, mode: str = "read", mount: Path | None = None, limit_s: float = LIMIT_S
    ) -> None:
        """Every byte of every file, all of the truth when none is named."""
        chosen = names or tuple(self.names())
        rows = self.read(*chosen, mode=mode, mount=mount, limit_s=limit_s)
        for name in chosen:
            size = (self.truth / name).stat().st_size
            assert rows[name] == {"name": name, "bytes": size, "error": "", "wrong": -1}, rows[name]

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.truth)) for path in self.truth.rglob("*") if path.is_file())

    # ------------------------------------------------------------ processes and mounts

    def processes(self) -> dict[int, str]:
        """Those of headrace's that belong to this host, known by their environment."""
        mark = f"HEADRACE_RUN_FOLDER={self.run_folder}".encode()
        commands = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                        words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                        commands[int(name)] = words.decode(errors="replace")
                except OSError:
                    continue
        return commands

    def pid_of(self, role: str) -> int:
        """Return the process of the node, the holder or the session, or 0 if there is none."""
        module = {
            "node": "headrace.node",
            "holder": "headrace.fuse.fd_store",
            "session": "headrace.fuse.session_main",
        }
        return next((pid for pid, words in self.processes().items() if f"-m {module[role]} " in words), 0)

    def wait_pid(self, role: str, *, other_than: int = 0) -> int:
        """Never 0, which os.kill takes for all of us: a process that died may not have a successor yet."""
        pid = 0

        def seen() -> bool:
            nonlocal pid
            pid = self.pid_of(role)
            return pid not in (0, other_than)

        wait_until(seen, LIMIT_S, hint=lambda: f"no {role}: {self.processes()}")
        return pid

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """The pid that it has, or had. SIGSTOP: it stands still on return."""
        pid = self.wait_pid(role)
        try:
            send(pid, number)
        except ProcessLookupError:
            pass
        return pid

    def mounts(self) -> list[str]:
        """Return the mountpoints of Headrace below the base."""
        return [
            row.mountpoint
            for row in mount_table()
            if row.kind == device.FSTYPE and row.mountpoint.startswith(f"{self.base}/")
        ]

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.processes(), hint=lambda: f"processes left: {self.processes()}")
        assert self.mounts() == []
        left = [path.name for path in self.run_folder.glob("*") if path.suffix != ".log"]
        assert left == [], left

    def close(self) -> None:
        """Whatever happened: no process, no mount, no seal, no file in memory."""
        service_logs.collect(self.logs())  # before the end of all, in which a process may see another die
        self._unmount_all()
        self.kill_all()
        self._unmount_all()
        for log in self.run_folder.glob("*.log"):  # a node that ends removes its socket first
            drop_socket(str(log.with_suffix(".sock")))
        service_logs.end(self)

    def logs(self) -> list[Path]:
        """Return the logs of the host's processes so far."""
        return [*self.run_folder.glob("*.log"), *self.base.glob("stderr-*")]

    def _unmount_all(self) -> None:
        for path in reversed(seals_below(str(self.base))):
            device.unmount(path, detach=True)
        for path in self.mounts():
            device.unmount(path, detach=True, abort=True)

    def kill_all(self) -> None:
        """One that was not killed yet may have started another."""
        quiet = 0
        while quiet < 3:
            pids = processes.marked(str(self.run_folder))
            quiet = 0 if pids else quiet + 1
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)


def send(pid: int, number: int) -> None:
    """os.kill, but nothing of a process runs any more when it was sent SIGSTOP: its threads see that later."""
    os.kill(pid, number)
    if number == signal.SIGSTOP:
        wait_until(lambda: processes.stopped(pid), hint=lambda: f"{pid} does not stand still")


def drop_caches(*folders: Path) -> None:
    """Forget the bytes of all files below the folders, and all names of this machine. Its other bytes stay cached:
    else each process of a run would read its programs from the disk again."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                with contextlib.suppress(FileNotFoundError):  # a node that runs may remove it
                    forget_bytes(path)
    Path("/proc/sys/vm/drop_caches").write_text("2")


def forget_bytes(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # what is not written yet can't be forgotten
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def one_each(host: Host) -> bool:
    """Return whether one FD store and one session serve the mount."""
    words = " ".join(host.processes().values())
    return all(words.count(f"-m headrace.fuse.{module} ") == 1 for module in ("fd_store", "session_main"))


def wait_until(
    condition: Callable[[], object],
    limit_s: float = LIMIT_S,
    *,
    hint: Callable[[], str] = lambda: "waited in vain",
) -> None:
    """Poll a condition. Polls that cost much are rarer: what is waited for needs the processors, too."""
    limit = time.monotonic() + limit_s
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < limit, hint()
        time.sleep(min(max(0.02, 2 * (now - began)), 0.5))
        began = time.monotonic()


@contextlib.contextmanager
def with_settings(host: Host, **given: object) -> Iterator[None]:
    """Set variables of the environment of the commands within."""
    before = host.environment
    host.environment = before | {f"HEADRACE_{name.upper()}": str(value) for name, value in given.items()}
    try:
        yield
    finally:
        host.environment = before
