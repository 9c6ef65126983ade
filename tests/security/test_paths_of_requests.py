"""No path, prefix or marker of a request leaves its bucket, ends in a trace, or keeps a gateway busy."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.cli.host import Host

DEEP = "/a" * 2040
ANSWERED_IN_S = 5.0
"""A moment on a quiet machine: what is not bounded takes more than 10 s."""
HIDDEN = "not-for-this-bucket"


@dataclass(frozen=True)
class Gateways:
    s3: str
    webhdfs: str
    rest: str
    host: Host

    def ask(self, url: str, method: str, target: str, body: bytes = b"", *headers: str) -> tuple[int, bytes]:
        """Status and body of a request as it stands."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
        lines += [f"Content-Length: {len(body)}"] if body else []
        parts, answer = urlsplit(url), b""
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=60) as sock:
            sock.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            while piece := sock.recv(65536):
                answer += piece
        return int(answer.split(b" ", 2)[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.fixture(scope="module")
def gateways(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    base = tmp_path_factory.mktemp("paths")
    host = Host(base, write="off,/out=back")
    host.put(HIDDEN, 10)
    (base / "origin").mkdir()
    config, token = base / "config.toml", base / "token"
    config.write_text(f'[mounts."/data"]\nurl = "{host.truth}"\n[mounts."/out"]\nurl = "{base / "origin"}"\n')
    token.write_text("token-of-this-test")
    token.chmod(0o600)
    address = ("--insecure", "--address", "127.0.0.1:0")
    try:
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        yield Gateways(
            str(host.start("s3", *address).wait_ready()["url"]),
            str(host.start("webhdfs", *address).wait_ready()["url"]),
            str(host.start("rest", *address, "--token", token).wait_ready()["url"]),
            host,
        )
    finally:
        host.close()


PREFIXES = [
    "../",
    "../data/",
    "dir/../../data/",
    "../../../",
    "./",
    "..%2Fdata%2F",
    "/",
    "//",
    "a%00b/",
    "%00",
]
PREFIXES += ["a/" * 2000, "a" * 5000 + "/", "%2e%2e/data/"]


@pytest.mark.parametrize(
    "query", ["prefix={}", "prefix={}&delimiter=/", "list-type=2&prefix={}", "versions&prefix={}"]
)
def test_prefix_stays_in_its_bucket(gateways: Gateways, query: str) -> None:
    assert gateways.ask(gateways.s3, "PUT", "/out/dir/key", b"hello")[0] == 200
    assert b"dir/key" in gateways.ask(gateways.s3, "GET", "/out?prefix=di")[1]
    for prefix in PREFIXES:
        status, body = gateways.ask(gateways.s3, "GET", "/out?" + query.format(prefix))
        assert status == 200, (prefix, body)
        assert HIDDEN.encode() not in body and b"<Key>" not in body and b"<CommonPrefixes>" not in body


@pytest.mark.parametrize(
    "marker", ["../", "../../x", "./", "%00", "dir/../", "dir/%00", "..%2F..%2Fdata", "-/../"]
)
def test_marker_stays_in_its_bucket(gateways: Gateways, marker: str) -> None:
    assert gateways.ask(gateways.s3, "PUT", "/out/dir/key", b"hello")[0] == 200
    for query in ("marker=", "list-type=2&start-after=", "versions&key-marker="):
        status, body = gateways.ask(gateways.s3, "GET", f"/out?{query}{marker}")
        assert status == 200
        assert HIDDEN.encode() not in body
        assert body.count(b"<Key>") == body.count(b"<Key>dir/key</Key>") <= 1


def test_deep_paths_are_answered_at_once(gateways: Gateways) -> None:
    token = "Authorization: Bearer token-of-this-test"
    json = "Content-Type: application/json"
    octets = "Content-Type: application/octet-stream"
    asked = [
        ("GET", f"{DEEP}?op=OPEN"),
        ("GET", f"/out{DEEP}?op=GETFILESTATUS"),
        ("PUT", f"/out{DEEP}?op=MKDIRS"),
    ]
    asked += [("PUT", f"/out{DEEP}?op=CREATE&data=true"), ("DELETE", f"/out{DEEP}?op=DELETE")]
    asked += [("PUT", f"/out/dir?op=RENAME&destination=/out{DEEP}")]
    requests: list[tuple[str, str, str, bytes, str]] = [
        (gateways.webhdfs, method, f"/webhdfs/v1{target}", b"", octets) for method, target in asked
    ]
    for method, target in [("GET", "entry"), ("GET", "entries"), ("GET", "content"), ("PUT", "directory")]:
        requests.append((gateways.rest, method, f"/v1/{target}?path=/out{DEEP}", b"", token))
    for target, text in [
        ("mounts", f'{{"path": "/{"m" * 250}/{"m" * 250}/{"m" * 250}", "url": "memory://x"}}'),
        ("rename", f'{{"source": "/out/dir", "target": "/out{DEEP}"}}'),
        ("jobs", f'{{"kind": "persist", "path": "/out{DEEP}"}}'),
    ]:
        requests.append((gateways.rest, "POST", f"/v1/{target}", text.encode(), f"{token}\r\n{json}"))
    requests.append((gateways.s3, "PUT", "/out/" + "b/" * 511 + "c", b"hello", octets))
    for url, method, target, body, headers in requests:
        began_s = time.monotonic()
        status, answer = gateways.ask(url, method, target, body, headers)
        took_s = time.monotonic() - began_s
        assert status < 500 and b"RecursionError" not in answer, (
            method,
            target[-60:],
            body[:80],
            answer[:200],
        )
        assert took_s < ANSWERED_IN_S, (method, target[-60:], took_s)
    for said in Path(gateways.host.base).glob("stderr-*"):
        assert "Traceback" not in said.read_text()
