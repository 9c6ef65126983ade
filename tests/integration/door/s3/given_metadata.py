"""Run a gateway over an S3 origin whose objects have metadata, which tests compare on both sides."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from headrace.testing.servers import S3Server
from tests.integration.cli.host import Host
from tests.integration.door.s3.conftest import S3, write_keys

PREFIX = "lake"

GIVEN: dict[str, Any] = {
    "Metadata": {"colour": "red", "mode": "33188", "two-words": "a b; c=d"},
    "ContentType": "application/x-thing",
    "ContentEncoding": "gzip",
    "ContentDisposition": 'attachment; filename="x"',
    "ContentLanguage": "en",
    "CacheControl": "no-store",
}


def start_gateway(origin: S3Server, base: Path, **settings: object) -> S3:
    host = Host(base, **settings)
    options = ", ".join(f'{key} = "{value}"' for key, value in origin.options().items())
    config = host.base / "config.toml"
    config.write_text(f'[mounts."/{PREFIX}"]\nurl = "{origin.url()}"\noptions = {{ {options} }}\n')
    config.chmod(0o600)
    host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
    gateway = host.start("s3", "--address", "127.0.0.1:0", "--credentials", write_keys(host.base))
    url = gateway.wait_ready()["url"]
    return S3(url, host.truth, host.truth, host)


def origin_client(origin: S3Server) -> tuple[Any, str]:
    """A client of the origin itself, and the bucket."""
    return _client_of(origin.endpoint, origin.access_key, origin.secret_key), origin.bucket


@functools.lru_cache(maxsize=8)
def _client_of(endpoint: str, access_key: str, secret_key: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(s3={"addressing_style": "path"}),
    )


def given_fields(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer.get(name) for name in GIVEN}
