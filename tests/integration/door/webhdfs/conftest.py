"""A node and its WebHDFS gateway for all tests of this folder: one folder that can only be read, one to write to.

What a test writes it puts below a folder of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from tests.integration.cli.host import Host, wait_until

READ, WRITE = "data", "out"
LIMIT_S = 60.0


@dataclass(frozen=True)
class WebHdfs:
    """truth: what the origin of READ holds. origin: that of WRITE, to which the node persists."""

    url: str
    truth: Path
    origin: Path
    host: Host

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def ask(self, method: str, path: str, op: str, **parameters: Any) -> requests.Response:
        """One request: redirects are not followed. path: below /webhdfs/v1."""
        return requests.request(
            method,
            f"{self.url}/webhdfs/v1{quote(path)}",
            params={"op": op, **parameters},
            allow_redirects=False,
            timeout=LIMIT_S,
        )

    def get(self, path: str, op: str, **parameters: Any) -> Any:
        """The JSON of an answer that must be a good one."""
        answer = self.ask("GET", path, op, **parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, path: str, data: bytes, **parameters: Any) -> requests.Response:
        """A file, in two steps."""
        first = self.ask("PUT", path, "CREATE", **parameters)
        assert first.status_code == 307, first.text
        return requests.put(first.headers["Location"], data=data, timeout=LIMIT_S)

    def append(self, path: str, data: bytes) -> requests.Response:
        first = self.ask("POST", path, "APPEND")
        assert first.status_code == 307, first.text
        return requests.post(first.headers["Location"], data=data, timeout=LIMIT_S)

    def bytes_of(self, path: str, **parameters: Any) -> bytes:
        answer = self.ask("GET", path, "OPEN", **parameters)
        assert answer.status_code == 200, answer.text
        return answer.content

    def failure(self, answer: requests.Response) -> tuple[str, int]:
        """The exception's name, and the status."""
        about = answer.json()["RemoteException"]
        assert about["javaClassName"].rpartition(".")[2].rpartition("$")[2] == about["exception"]
        assert about["message"]
        return about["exception"], answer.status_code

    def persisted(self, name: str) -> bytes | None:
        """Return what the origin has of it below WRITE; None: nothing yet."""
        path = self.origin / name
        return path.read_bytes() if path.is_file() else None

    def wait_persisted(self, name: str, data: bytes) -> None:
        wait_until(lambda: self.persisted(name) == data, LIMIT_S, hint=lambda: f"{name} at the origin")

    def raw(self, data: bytes) -> bytes:
        """Send bytes, and return what is answered until the connection ends."""
        with socket.create_connection(self.address, timeout=LIMIT_S) as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer


def fill(host: Host) -> None:
    sizes = {"empty": 0, "one": 1, "small": 4096, "block": 1 << 20, "more": (1 << 20) + 1}
    for name, size in sizes.items():
        host.put(f"{name}.bin", size)
    host.put("large.tar", (21 << 20) + 321)
    for name in ("a", "b/c", "b/d/e", "sp ace+plus&<.txt", "übergrößen", "per%20cent", "semi;colon=,"):
        host.put(f"names/{name}", 10)


def start(host: Host, *words: object) -> str:
    """A node and a gateway that asks for no token; the gateway's URL."""
    base = host.base
    fill(host)
    (base / "origin").mkdir()
    config = base / "config.toml"
    config.write_text(
        f'[mounts."/{READ}"]\nurl = "{host.truth}"\n[mounts."/{WRITE}"]\nurl = "{base / "origin"}"\n'
    )
    host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
    return str(host.start("webhdfs", "--insecure", "--address", "127.0.0.1:0", *words).wait_ready()["url"])


@contextmanager
def serving(base: Path) -> Iterator[WebHdfs]:
    """Run a host with a node and the gateway below a directory."""
    host = Host(base, write=f"off,/{WRITE}=back", persist_delay_s=0.1)
    try:
        yield WebHdfs(start(host), host.truth, host.base / "origin", host)
    finally:
        host.close()


@pytest.fixture(scope="package")
def webhdfs(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebHdfs]:
    with serving(tmp_path_factory.mktemp("webhdfs")) as served:
        yield served
