"""Real mounts. Each is detached in the end, whatever happened."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.fuse import device
from tests import service_logs
from tests.fork_server import ForkingPopen
from tests.integration.cli.host import wait_until

ROOT = Path(__file__).parents[3]


class Mounted:
    """A mount of a memory client. Never touched but through files and other processes: this process serves
    nothing."""

    def __init__(self, folder: Path, io: str, *, allow_failure: bool = False) -> None:
        self.folder = folder
        self.mount = folder / "mnt"
        self.source = folder / "source"
        read, write = os.pipe()
        command = [sys.executable, "-m", "headrace.fuse.fd_store", "--mountpoint", str(self.mount)]
        command += ["--socket", str(folder), "--io", io, "--ready-fd", str(write)]
        command += ["--client", "tests.integration.fuse.memory_client:connect"]
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self.log = (folder / "log").open("ab")
        self.holder: subprocess.Popen[bytes] = ForkingPopen(
            command, pass_fds=(write,), env=environment, stderr=self.log, stdout=self.log
        )
        os.close(write)
        ready, _, _ = select.select([read], [], [], 60)
        self.ready = json.loads(os.read(read, 4096) or b"{}") if ready else {}
        os.close(read)
        assert allow_failure or self.ready.get("ready"), (self.ready, (folder / "log").read_text())

    @property
    def session_pid(self) -> int:
        return self.session_pids()[0]

    def session_pids(self) -> list[int]:
        return self._pids("headrace.fuse.session_main")

    def holder_pids(self) -> list[int]:
        return self._pids("headrace.fuse.fd_store")

    def _pids(self, module: str) -> list[int]:
        pids = []
        for name in os.listdir("/proc"):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
            except OSError:
                continue
            if module.encode() in words and os.fsencode(self.mount) in words:
                pids.append(int(name))
        return pids

    def id_of(self, name: str) -> int:
        return (self.source / name).stat().st_ino & 0xFFFFFFFF | 1 << 32

    def order(self, kind: str, arguments: list[object]) -> None:
        """Has the client do something and waits until it did."""
        path = self.folder / f"order-{time.monotonic_ns()}"
        (self.folder / ".order").write_text(json.dumps([kind, arguments]))
        (self.folder / ".order").rename(path)
        wait_until(lambda: not path.exists())

    def close(self) -> None:
        service_logs.collect([self.folder / "log"])
        device.unmount(str(self.mount), detach=True)
        for pid in self.holder_pids() + self.session_pids():
            try:
                os.kill(pid, signal.SIGTERM if pid == self.holder.pid else signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.holder.wait(5)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait(5)
        for pid in self.holder_pids() + self.session_pids():
            os.kill(pid, signal.SIGKILL)
        self.log.close()


Mounter = Callable[..., Mounted]


@pytest.fixture
def mounter(needs_fuse: None, tmp_path: Path) -> Iterator[Mounter]:
    """Call with an io mode, options of the client as keywords, and files name → bytes already in `files`."""
    mounts: list[Mounted] = []
    for name in ("source", "cache", "partial", "mnt"):
        (tmp_path / name).mkdir()

    def mount(io: str, files: dict[str, bytes] | None = None, **options: object) -> Mounted:
        for name, data in (files or {}).items():
            path = tmp_path / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (tmp_path / "options.json").write_text(json.dumps(options))
        mounts.append(Mounted(tmp_path, io))
        return mounts[-1]

    yield mount
    for mounted in mounts:
        mounted.close()
