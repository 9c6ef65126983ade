"""Serves the same objects over HTTP: by the gateway, SeaweedFS's, and nginx (or, without it, sendfile in threads).

Requests to the two gateways are presigned, and each checks the signature of every one of them.
"""

from __future__ import annotations

import datetime
import http.server
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import obstore
from nodebench.machine import NotRunError, Workplace, stop, wait_until

from headrace.testing.servers import S3Server, free_ports

KEYS = "[bench]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
SIGNED_FOR = datetime.timedelta(hours=6)
_NGINX = """
worker_processes auto; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen {address}; root {root}; }}
}}
"""


@dataclass(frozen=True)
class Contender:
    """target_of: an object's name to what is asked for, path and query."""

    address: str
    target_of: Callable[[str], str]


def seaweedfs(server: S3Server) -> Contender:
    return Contender(urlsplit(server.endpoint).netloc, lambda name: _signed(server.endpoint, server, name))


def headrace(place: Workplace, server: S3Server) -> Contender:
    """A node with the bucket attached, and its gateway."""
    folder = place.folder("headrace")
    options = ", ".join(f'{key} = "{value}"' for key, value in server.options().items())
    with open(f"{folder}/config.toml", "w") as out:
        out.write(f'[mounts."/{server.bucket}"]\nurl = "{server.url()}"\noptions = {{ {options} }}\n')
        os.fchmod(out.fileno(), 0o600)  # it has secrets
    with open(f"{folder}/keys", "w") as out:
        out.write(KEYS.format(server.access_key, server.secret_key))
        os.fchmod(out.fileno(), 0o600)
    environment = {
        "HEADRACE_RUN_FOLDER": f"{folder}/run",
        "XDG_CONFIG_HOME": folder,
        "XDG_CACHE_HOME": folder,
    }
    cache = f"{folder}/cache:8GiB"
    _start(place, ["node", "run", "--config", f"{folder}/config.toml", "--cache", cache], environment)
    words = ["s3", "--address", "127.0.0.1:0", "--credentials", f"{folder}/keys"]
    url = str(_start(place, words, environment)["url"])
    return Contender(urlsplit(url).netloc, lambda name: _signed(url, server, name))


def _start(place: Workplace, words: list[str], environment: dict[str, str]) -> dict[str, object]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=place.log("headrace"),
        env=os.environ | environment,
        start_new_session=True,
    )
    place.undo.callback(stop, process)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise NotRunError(f"headrace {words[0]}: {place.log_tail('headrace')}")
    ready: dict[str, object] = json.loads(line)
    return ready


def _signed(endpoint: str, server: S3Server, name: str) -> str:
    from obstore.store import S3Store

    store = S3Store(
        server.bucket,
        endpoint=endpoint,
        region="us-east-1",
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        client_options={"allow_http": True},
    )
    url = urlsplit(obstore.sign(store, "GET", name, SIGNED_FOR))
    return f"{url.path}?{url.query}"


def web_server(place: Workplace, root: str) -> tuple[str, Contender]:
    """nginx, by its name, where it is installed; else threads that sendfile."""
    program = os.environ.get("NGINX") or shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        return "sendfile-threads", _sendfile_threads(place, root)
    os.chmod(place.root, 0o755)  # its workers are another user's
    folder, address = place.folder("nginx"), f"127.0.0.1:{free_ports(1)[0]}"
    with open(f"{folder}/nginx.conf", "w") as out:
        out.write(_NGINX.format(folder=folder, address=address, root=root))
    command = [program, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]
    process = subprocess.Popen(command, stderr=place.log("nginx"), start_new_session=True)
    place.undo.callback(stop, process)
    wait_until(lambda: os.path.exists(f"{folder}/nginx.pid"), timeout_s=10, name="nginx")
    return "nginx", Contender(address, lambda name: f"/{name}")


class _Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root = ""

    def do_GET(self) -> None:
        with open(self.root + self.path, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.connection.sendfile(source)

    def log_message(self, *_: object) -> None:
        pass


def _sendfile_threads(place: Workplace, root: str) -> Contender:
    handler = type("Files", (_Files,), {"root": root})
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place.undo.callback(server.shutdown)
    return Contender(f"127.0.0.1:{server.server_address[1]}", lambda name: f"/{name}")
