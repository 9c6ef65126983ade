"""A node and its S3 gateway for all tests of this folder: one bucket that can only be read, one that can be written.

Everything is asked for by signed requests. What a test writes it puts below a prefix of its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.testing.servers import S3Server
from tests.emulators import new_bucket
from tests.integration.cli.host import Host

ACCESS, SECRET, REGION = "AKIATESTS", "a secret/with+signs", "us-east-1"
READ, WRITE = "data", "out"


@dataclass(frozen=True)
class S3:
    """truth: what the origin of READ holds. origin: that of WRITE, to which the node persists."""

    url: str
    truth: Path
    origin: Path
    host: Host

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 0)

    def client(self, number: int = 0, /, **config: str) -> Any:
        """boto3's, which tries once. Each number has a client of its own."""
        return make_client(self.url, number, tuple(sorted(config.items())))

    def environment(self) -> dict[str, str]:
        """Return the environment of a program that reads the usual variables."""
        return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def raw(self, data: bytes, *, limit_s: float = 10.0) -> bytes:
        """Send bytes, and return what is answered until the connection ends."""
        with socket.create_connection(self.address, timeout=limit_s) as connection:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer


@functools.lru_cache(maxsize=32)
def make_client(url: str, number: int, config: tuple[tuple[str, str], ...]) -> Any:
    """Make one, which takes some 50 ms."""
    import boto3
    from botocore.config import Config

    given = dict(config)
    keys = given.pop("access", ACCESS), given.pop("secret", SECRET)
    settings: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}}
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=keys[0],
        aws_secret_access_key=keys[1],
        config=Config(**settings, **given),
    )


def fill(host: Host) -> Path:
    """Objects of all sizes that matter, and names that sort otherwise than folders do."""
    for name, size in {"empty": 0, "one": 1, "small": 4096, "block": 1 << 20, "more": (1 << 20) + 1}.items():
        host.put(f"{name}.bin", size)
    host.put("large.tar", (21 << 20) + 321)
    for name in (
        "a",
        "a-b",
        "a.txt",
        "a/c",
        "a/b/d",
        "a0",
        "b/x",
        "sp ace+plus&<.txt",
        "übergrößen",
        "z/y/x/w",
    ):
        if not (host.truth / name).is_dir() and name != "a":
            host.put(f"names/{name}", 10)
    return host.truth


def write_keys(folder: Path) -> Path:
    """The credentials of these tests, for a gateway."""
    keys = folder / "keys"
    keys.write_text(f"[tests]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")
    keys.chmod(0o600)
    return keys


def start(host: Host) -> str:
    """A node and a gateway that asks for signatures; the gateway's URL."""
    base = host.base
    fill(host)
    (base / "origin").mkdir()
    config = base / "config.toml"
    config.write_text(
        f'[mounts."/{READ}"]\nurl = "{host.truth}"\n[mounts."/{WRITE}"]\nurl = "{base / "origin"}"\n'
    )
    keys = write_keys(base)
    host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
    return str(host.start("s3", "--address", "127.0.0.1:0", "--credentials", keys).wait_ready()["url"])


@pytest.fixture(scope="module")
def origin(needs_root: None, seaweed: S3Server) -> S3Server:
    """A bucket of its own for a module."""
    return new_bucket(seaweed)


@contextmanager
def serving(base: Path) -> Iterator[S3]:
    """Run a host with a node and the gateway below a directory."""
    host = Host(base, write=f"off,/{WRITE}=back", persist_delay_s=0.1)
    try:
        yield S3(start(host), host.truth, host.base / "origin", host)
    finally:
        host.close()


@pytest.fixture(scope="package")
def s3(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with serving(tmp_path_factory.mktemp("s3")) as served:
        yield served


@pytest.fixture
def client(s3: S3) -> Any:
    return s3.client()


def program(name: str) -> str:
    """Its path; skips where it is not installed."""
    path = shutil.which(name, path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}")
    if path is None:
        pytest.skip(f"server: {name} is not installed")
    return path


def code_of(raised: Any) -> tuple[str, int]:
    """Return the code and the status of botocore's ClientError."""
    answer = raised.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def run_client(s3: S3, *words: object, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        env=s3.environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout
