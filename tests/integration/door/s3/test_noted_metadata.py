"""Metadata that an origin sends with an object's bytes is noted with them: then it is asked for nothing more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.testing.etcd import etcd_server
from headrace.testing.servers import S3Server, ServerMissing, free_ports, seaweedfs_s3
from tests.integration.cli.host import wait_until
from tests.integration.door.s3.conftest import S3, write_keys
from tests.integration.door.s3.given_metadata import GIVEN, PREFIX, given_fields, origin_client, start_gateway

MIB = 1 << 20
SMALL, LARGE = 1000, 9 * MIB + 5
OTHERS: dict[str, Any] = dict.fromkeys(GIVEN) | {
    "Metadata": {"colour": "blue"},
    "ContentType": "text/x",
}
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def lake(origin: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    lake = start_gateway(origin, tmp_path_factory.mktemp("noted"), write="off", sync_interval_s=3600)
    yield lake
    lake.host.close()


def put(origin: S3Server, key: str, size: int, **given: Any) -> bytes:
    client, bucket = origin_client(origin)
    data = os.urandom(size)
    client.put_object(Bucket=bucket, Key=key, Body=data, **given)
    return data


def asked(s3: S3, call: str = "requests") -> int:
    return int(s3.host.status()["origin"]["mounts"][f"/{PREFIX}"][call])


def listing(s3: S3) -> str:
    return str([row["Key"] for row in s3.client().list_objects_v2(Bucket=PREFIX)["Contents"]])


def got(s3: S3, key: str, **more: Any) -> tuple[bytes, dict[str, Any]]:
    answer = s3.client().get_object(Bucket=PREFIX, Key=key, **more)
    return answer["Body"].read(), given_fields(answer)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_cold_object_is_asked_for_its_bytes_alone(origin: S3Server, lake: S3, size: int) -> None:
    """It costs as many reads as without a gateway, no HEAD; a second time nothing. A process that has just begun knows
    too."""
    names = [f"{size}/{name}" for name in ("gateway", "plain", "range", "loaded")]
    data = {name: put(origin, name, size, **GIVEN) for name in names}
    lake.host.ok("sync")
    through, plain, part, loaded = names
    before = asked(lake, "read_requests"), asked(lake, "head_requests")
    lake.host.ok("load", f"/{PREFIX}/{plain}")
    reads = asked(lake, "read_requests") - before[0]
    assert got(lake, through) == (data[through], GIVEN)
    assert asked(lake, "read_requests") - before[0] == 2 * reads
    assert got(lake, part, Range="bytes=100-199") == (data[part][100:200], GIVEN)
    lake.host.ok("load", f"/{PREFIX}/{loaded}")
    before = asked(lake), before[1]
    other = lake.host.start("s3", "--address", "127.0.0.1:0", "--credentials", write_keys(lake.host.base))
    fresh = S3(other.wait_ready()["url"], lake.truth, lake.origin, lake.host)
    for s3 in (fresh, lake):
        for name in names:
            assert given_fields(s3.client().head_object(Bucket=PREFIX, Key=name)) == GIVEN, name
            assert got(s3, name, Range="bytes=0-99") == (data[name][:100], GIVEN), name
    assert asked(lake, "head_requests") == before[1]
    assert size == LARGE or asked(lake) == before[0]


def test_of_what_is_not_cached_the_origin_is_asked_once(origin: S3Server, lake: S3) -> None:
    """By HEAD, and by a condition that is answered without the bytes; an empty object has no bytes to come with."""
    data = put(origin, "uncached", SMALL, **GIVEN)
    put(origin, "empty", 0, **GIVEN)
    lake.host.ok("sync")
    client, before = lake.client(), asked(lake, "head_requests")
    for _ in range(3):
        assert given_fields(client.head_object(Bucket=PREFIX, Key="uncached")) == GIVEN
        assert got(lake, "empty") == (b"", GIVEN)
    assert asked(lake, "head_requests") == before + 2
    assert got(lake, "uncached") == (data, GIVEN)
    assert asked(lake, "head_requests") == before + 2


def test_an_object_that_was_replaced_has_what_the_new_one_has(origin: S3Server, lake: S3) -> None:
    put(origin, "replaced", SMALL, **GIVEN)
    lake.host.ok("sync")
    assert got(lake, "replaced")[1] == GIVEN
    others = {name: value for name, value in OTHERS.items() if value is not None}
    data = put(origin, "replaced", SMALL, **others)
    lake.host.ok("sync")
    assert got(lake, "replaced") == (data, OTHERS)
    assert given_fields(lake.client().head_object(Bucket=PREFIX, Key="replaced")) == OTHERS


def test_metadata_that_changed_alone_is_seen_with_the_next_listing(origin: S3Server, lake: S3) -> None:
    """A copy onto itself has the same ETag, so the same bytes; only its time tells."""
    data = put(origin, "dressed", SMALL, **GIVEN)
    lake.host.ok("sync")
    assert got(lake, "dressed") == (data, GIVEN)
    client, bucket = origin_client(origin)
    before = client.head_object(Bucket=bucket, Key="dressed")
    others = {name: value for name, value in OTHERS.items() if value is not None}

    def change() -> Any:
        source = {"Bucket": bucket, "Key": "dressed"}
        client.copy_object(
            Bucket=bucket, Key="dressed", CopySource=source, MetadataDirective="REPLACE", **others
        )
        return client.head_object(Bucket=bucket, Key="dressed")

    wait_until(lambda: change()["LastModified"] != before["LastModified"], 10)  # whole seconds
    assert change()["ETag"] == before["ETag"]
    reads = asked(lake, "read_requests")
    lake.host.ok("sync")
    assert got(lake, "dressed") == (data, OTHERS)
    assert asked(lake, "read_requests") == reads


def test_one_without_any_has_none(origin: S3Server, lake: S3) -> None:
    data = put(origin, "bare", SMALL)
    put(origin, "jpeg.txt", SMALL, ContentType="image/jpeg")
    lake.host.ok("sync")
    before = asked(lake, "head_requests")
    for _ in range(2):
        body, answer = got(lake, "bare")
        assert (body, answer["Metadata"], answer["CacheControl"]) == (data, {}, None)
        assert got(lake, "jpeg.txt")[1]["ContentType"] == "image/jpeg"
        head = lake.client().head_object(Bucket=PREFIX, Key="jpeg.txt")
        assert head["ContentType"] == "image/jpeg"
    assert asked(lake, "head_requests") == before


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_an_object_whose_metadata_is_not_ascii_is_read(origin: S3Server, lake: S3, size: int) -> None:
    """obstore tells nothing of it, so HEAD of one that is not cached has no metadata, which is said."""
    client, bucket = origin_client(origin)
    key, name, data = f"odd/{size}", 'attachment; filename="grün.txt"', os.urandom(size)
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": key}))
    connection = HTTPConnection(str(url.hostname), url.port)
    connection.putrequest("PUT", f"{url.path}?{url.query}")
    connection.putheader("Content-Length", str(size))
    connection.putheader("Content-Disposition", name.encode())
    connection.endheaders(data)
    assert connection.getresponse().status == 200
    connection.close()
    other = put(origin, f"odd/other-{size}", SMALL, **GIVEN)
    lake.host.ok("sync")
    head = lake.client().head_object(Bucket=PREFIX, Key=key)
    assert (head["ContentLength"], head["MissingMeta"]) == (size, 1)
    for _ in range(2):
        answer = lake.client().get_object(Bucket=PREFIX, Key=key)
        assert answer["Body"].read() == data
        assert answer["ContentDisposition"].encode("latin-1").decode() == name
    assert got(lake, f"odd/other-{size}") == (other, GIVEN)
    lake.host.ok("load", f"/{PREFIX}/odd")


def test_cached_objects_keep_it_while_the_origin_is_away(tmp_path: Path) -> None:
    """Also when the node was killed meanwhile. Of an object without bytes nothing came with them, which is said."""
    try:
        with seaweedfs_s3() as server:
            data = put(server, "object", SMALL, **GIVEN)
            put(server, "empty", 0, **GIVEN)
            s3 = start_gateway(server, tmp_path, write="off", sync_interval_s=3600, origin_timeout_s=3)
            s3.host.ok("load", f"/{PREFIX}")
        try:
            assert got(s3, "object") == (data, GIVEN)
            assert given_fields(s3.client().head_object(Bucket=PREFIX, Key="object")) == GIVEN
            answer = s3.client().get_object(Bucket=PREFIX, Key="empty")
            assert (answer["Body"].read(), answer["Metadata"], answer["MissingMeta"]) == (b"", {}, 1)
        finally:
            s3.host.close()
    except ServerMissing as missing:
        pytest.skip(f"server: {missing}")


@pytest.mark.timeout(120)
def test_what_comes_from_another_node_comes_with_it(origin: S3Server, tmp_path: Path) -> None:
    """Two nodes: each object is asked for once at the origin, by its owner, and told at both gateways; so is what
    no origin has yet."""
    keys = [f"peers/{number}" for number in range(12)]
    data = {key: put(origin, key, LARGE if number < 2 else SMALL, **GIVEN) for number, key in enumerate(keys)}
    try:
        with ExitStack() as stack:
            etcd = stack.enter_context(etcd_server())
            both = []
            for number, port in enumerate(free_ports(2)):
                (tmp_path / str(number)).mkdir()
                node = start_gateway(
                    origin, tmp_path / str(number), write="back", persist_delay_s=3600, sync_interval_s=3600,
                    cluster=f"etcd://{etcd.address}/{tmp_path.name}", node_id=f"n{number}",
                    listen=f"127.0.0.1:{port}", lease_s=2,
                )  # fmt: skip
                stack.callback(node.host.close)
                both.append(node)
            for node in both:
                wait_until(lambda node=node: len(node.host.status()["cluster"]["members"]) == 2, 30)  # type: ignore[misc]
            for key in keys:
                for node in both:
                    assert got(node, key) == (data[key], GIVEN), key
                    assert given_fields(node.client().head_object(Bucket=PREFIX, Key=key)) == GIVEN
            status = [node.host.status() for node in both]
            assert all(report["peers"]["bytes_read"] for report in status)
            assert sum(report["origin"]["bytes_read"] for report in status) == sum(map(len, data.values()))
            assert [asked(node, "head_requests") for node in both] == [0, 0]
            given = os.urandom(SMALL)
            both[0].client().put_object(Bucket=PREFIX, Key="peers/new", Body=given, **GIVEN)
            wait_until(lambda: "peers/new" in listing(both[1]), 10)
            assert got(both[1], "peers/new") == (given, GIVEN)  # nothing of it is at the origin
    except ServerMissing as missing:
        pytest.skip(f"server: {missing}")
