"""A bucket that is a bucket: an S3 origin behind the gateway, written through."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import obstore
import pytest

from headrace.testing.servers import S3Server
from tests.integration.cli.host import Host
from tests.integration.door.s3.conftest import S3, write_keys

PREFIX = "lake"


@pytest.fixture(scope="module")
def lake(origin: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """The bucket below /lake; the gateway asks for no signatures."""
    host = Host(tmp_path_factory.mktemp("lake"), write="through")
    try:
        options = ", ".join(f'{key} = "{value}"' for key, value in origin.options().items())
        config = host.base / "config.toml"
        config.write_text(f'[mounts."/{PREFIX}"]\nurl = "{origin.url()}"\noptions = {{ {options} }}\n')
        config.chmod(0o600)
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        gateway = host.start("s3", "--address", "127.0.0.1:0", "--credentials", write_keys(host.base))
        url = gateway.wait_ready()["url"]
        yield S3(url, host.truth, host.truth, host)
    finally:
        host.close()


def test_the_origin_has_what_was_put_when_the_call_returns(origin: S3Server, lake: S3) -> None:
    client = lake.client()
    assert origin.store is not None
    for size in (0, 1000, (6 << 20) + 1):
        data = random.Random(size).randbytes(size)
        etag = client.put_object(Bucket=PREFIX, Key=f"put/{size}", Body=data)["ETag"]
        assert etag == f'"{hashlib.md5(data).hexdigest()}"'
        assert bytes(obstore.get(origin.store, f"put/{size}").bytes()) == data
    client.delete_object(Bucket=PREFIX, Key="put/1000")
    with pytest.raises(FileNotFoundError):
        obstore.head(origin.store, "put/1000")


def test_etags_are_the_origins(origin: S3Server, lake: S3) -> None:
    client = lake.client()
    assert origin.store is not None
    data = random.Random(1).randbytes(100_000)
    origin.put("ours/object", data)
    lake.host.ok("sync")
    wanted = obstore.head(origin.store, "ours/object")["e_tag"]
    for _ in range(2):  # not cached, and cached
        answer = client.get_object(Bucket=PREFIX, Key="ours/object")
        assert (answer["Body"].read(), answer["ETag"]) == (data, wanted)
    assert client.list_objects_v2(Bucket=PREFIX, Prefix="ours/")["Contents"][0]["ETag"] == wanted


def test_a_change_at_the_origin_is_seen_after_a_sync(origin: S3Server, lake: S3) -> None:
    client = lake.client()
    for data in (b"one", b"another"):
        origin.put("changed", data)
        lake.host.ok("sync")
        assert client.get_object(Bucket=PREFIX, Key="changed")["Body"].read() == data
