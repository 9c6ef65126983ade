"""`versionId` of the S3 gateway names a seal, whose objects can be read only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.host import Host, wait_until

boto3 = pytest.importorskip("boto3")

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host whose gateway serves two buckets. The first one was sealed and changed."""
    host = Host(tmp_path, s3_address="127.0.0.1:0", s3_insecure="true")
    try:
        for number in range(5):
            host.put(f"images/{number % 2}/{number}.bin", 3000 + number)
        host.put("images/top", 100)
        host.put("other/x", 10)
        host.up()
        yield host
    finally:
        host.close()


def client_of(host: Host) -> Any:
    from botocore.config import Config

    wait_until(lambda: host.json("status")["gateways"])
    (gateway,) = (row for row in host.json("status")["gateways"] if row["kind"] == "s3")
    return boto3.client(
        "s3",
        endpoint_url=f"http://{gateway['address']}",
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def test_a_version_is_read_and_never_changed(host: Host) -> None:
    host.ok("seal", host.mount / "images", "--as", "images@1")
    host.ok("seal", host.mount / "images/0", "--as", "part@2")
    s3, sealed = client_of(host), host.truth / "images/0/0.bin"
    first = sealed.read_bytes()
    second = host.put("images/0/0.bin", 4000, seed=2)
    host.put("images/new", 50)
    (host.truth / "images/1/1.bin").unlink()
    host.ok("sync", "/")
    name = {"Bucket": "images", "Key": "0/0.bin"}
    assert s3.get_object(**name)["Body"].read() == second
    for version in ("images@1", "part@2"):
        answer = s3.get_object(**name, VersionId=version)
        assert (answer["Body"].read(), answer["VersionId"]) == (first, version)
        assert s3.get_object(**name, VersionId=version, Range="bytes=7-9")["Body"].read() == first[7:10]
        head = s3.head_object(**name, VersionId=version)
        assert (head["ContentLength"], head["VersionId"]) == (3000, version)
        assert head["ETag"] == answer["ETag"] != s3.head_object(**name)["ETag"]
    assert keys(s3, "images@1") == ["0/0.bin", "0/2.bin", "0/4.bin", "1/1.bin", "1/3.bin", "top"]
    assert keys(s3, "images@1", Prefix="0/", Delimiter="/") == ["0/0.bin", "0/2.bin", "0/4.bin"]
    assert refusal(lambda: s3.get_object(Bucket="images", Key="new", VersionId="images@1")) == "NoSuchKey"
    assert refusal(lambda: s3.get_object(Bucket="other", Key="x", VersionId="images@1")) == "NoSuchVersion"
    for version in ("images@9", "9", "../images@1", "images@1/.."):
        assert refusal(lambda v=version: s3.get_object(**name, VersionId=v)) == "NoSuchVersion"
    assert refusal(lambda: s3.delete_object(**name, VersionId="images@1")) == "MethodNotAllowed"
    assert s3.get_object(**name, VersionId="images@1")["Body"].read() == first


def keys(s3: Any, version: str, **more: str) -> list[str]:
    """Return the keys of a listing of a version: the argument is not one of S3's own."""

    def add(request: Any, **_: Any) -> None:
        request.url += f"&versionId={version}" if "?" in request.url else f"?versionId={version}"

    s3.meta.events.register("before-sign.s3.ListObjectsV2", add)
    try:
        return [row["Key"] for row in s3.list_objects_v2(Bucket="images", **more)["Contents"]]
    finally:
        s3.meta.events.unregister("before-sign.s3.ListObjectsV2", add)


def refusal(call: Any) -> str:
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Code"])
