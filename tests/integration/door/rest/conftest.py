"""A node and its REST API, with one mount that is read, and one that is written to."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.host import Host, Up

TOKEN = "of-the-tests"


@dataclass(frozen=True)
class Told:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Api:
    """truth: what the origin of /data holds. origin: that of /out, to which the node persists."""

    url: str
    host: Host
    up: Up
    truth: Path
    origin: Path
    token: str = field(default=TOKEN)

    def ask(
        self, method: str, path: str, *, body: Any = None, token: str | None = None, **headers: str
    ) -> Told:
        """body: bytes, or what becomes JSON. headers: with _ for -."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        shown = self.token if token is None else token
        if shown:
            given["Authorization"] = f"Bearer {shown}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=given)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return Told(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Told(error.code, error.headers, error.read())


@pytest.fixture(scope="package")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serving(tmp_path_factory.mktemp("rest"), write="/out=back,off") as api:
        yield api


@contextmanager
def serving(base: Path, **settings: object) -> Iterator[Api]:
    """A node with both mounts and its API, ended at the end."""
    token = base / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    settings.setdefault("allowed_origins", f"file://{base.parent}")
    host = Host(base, rest_address="127.0.0.1:0", rest_token=token, persist_delay_s="0.1", **settings)
    for name, size in {"empty": 0, "one": 1, "small": 4096, "block": 1 << 20, "more": (1 << 20) + 1}.items():
        host.put(name, size)
    host.put("large", (5 << 20) + 321)
    host.put("images/0001.jpg", 110_000)
    origin = base / "origin"
    origin.mkdir()
    try:
        up = host.start("up", "--cache", f"{host.cache}:256MiB")
        up.wait_ready()
        host.ok("mount", "add", "/data", host.truth)
        host.ok("mount", "add", "/out", origin)
        yield Api(up.ready["rest"], host, up, host.truth, origin)
        up.signal(signal.SIGTERM)
        up.wait()
    finally:
        host.close()
