"""User metadata, content headers and tags: a real S3 server behind the gateways of two nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.testing.servers import S3Server
from tests.integration.door.s3.conftest import S3, code_of, program, run_client
from tests.integration.door.s3.given_metadata import GIVEN, PREFIX, given_fields, origin_client, start_gateway

TAGS = [{"Key": "team", "Value": "vision"}, {"Key": "is raw", "Value": "yes/no=é"}]
pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def lake(origin: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    lake = start_gateway(origin, tmp_path_factory.mktemp("lake"), write="through")
    yield lake
    lake.host.close()


@pytest.fixture(scope="module")
def other(origin: S3Server, lake: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A node that knows nothing of the first one, and of an object only what the origin tells."""
    other = start_gateway(origin, tmp_path_factory.mktemp("other"), write="through", sync_interval_s=0)
    yield other
    other.host.close()


def tags_of(client: Any, key: str) -> list[dict[str, str]]:
    tags: list[dict[str, str]] = client.get_object_tagging(Bucket=PREFIX, Key=key)["TagSet"]
    return sorted(tags, key=lambda tag: tag["Key"])


def in_order(tags: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(tags, key=lambda tag: tag["Key"])


@pytest.mark.parametrize("size", [10, (6 << 20) + 1])
def test_what_is_given_is_told_and_is_at_the_origin(origin: S3Server, lake: S3, other: S3, size: int) -> None:
    key, data = f"given/{size}", os.urandom(size)
    tagging = "team=vision&is%20raw=yes%2Fno%3D%C3%A9"
    lake.client().put_object(Bucket=PREFIX, Key=key, Body=data, Tagging=tagging, **GIVEN)
    for s3 in (lake, other, lake, other):
        client = s3.client()
        head = client.head_object(Bucket=PREFIX, Key=key)
        assert given_fields(head) == GIVEN
        assert head["TagCount"] == 2
        answer = client.get_object(Bucket=PREFIX, Key=key)
        assert (answer["Body"].read(), given_fields(answer)) == (data, GIVEN)
        assert tags_of(client, key) == in_order(TAGS)
    client, bucket = origin_client(origin)
    head = client.head_object(Bucket=bucket, Key=key)
    assert given_fields(head) | {"Metadata": GIVEN["Metadata"]} == GIVEN
    assert head["Metadata"].items() >= GIVEN["Metadata"].items()
    assert in_order(client.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]) == in_order(TAGS)


def test_a_put_without_them_has_none(lake: S3, other: S3) -> None:
    client = lake.client()
    client.put_object(Bucket=PREFIX, Key="again", Body=b"1", Tagging="a=b", **GIVEN)
    client.put_object(Bucket=PREFIX, Key="again", Body=b"2")
    for s3 in (lake, other):
        head = s3.client().head_object(Bucket=PREFIX, Key="again")
        assert (head["Metadata"], head.get("TagCount"), head.get("CacheControl")) == ({}, None, None)
        assert tags_of(s3.client(), "again") == []


def test_uploads_in_parts_and_copies_have_them(lake: S3, other: S3) -> None:
    client = lake.client()
    upload = client.create_multipart_upload(Bucket=PREFIX, Key="parts", Tagging="a=b", **GIVEN)["UploadId"]
    etag = client.upload_part(Bucket=PREFIX, Key="parts", UploadId=upload, PartNumber=1, Body=b"x" * 1000)[
        "ETag"
    ]
    client.complete_multipart_upload(
        Bucket=PREFIX,
        Key="parts",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": etag}]},
    )
    source = {"Bucket": PREFIX, "Key": "parts"}
    client.copy_object(Bucket=PREFIX, Key="copied", CopySource=source)
    other.host.ok("sync")
    other.client().copy_object(Bucket=PREFIX, Key="copied there", CopySource=source)
    client.copy_object(
        Bucket=PREFIX, Key="replaced", CopySource=source, MetadataDirective="REPLACE", Metadata={"new": "1"},
        TaggingDirective="REPLACE", Tagging="c=d",
    )  # fmt: skip
    lake.host.ok("sync")
    for s3 in (lake, other):
        s3.host.ok("sync")
        for key in ("parts", "copied", "copied there"):
            assert given_fields(s3.client().head_object(Bucket=PREFIX, Key=key)) == GIVEN, key
            assert tags_of(s3.client(), key) == [{"Key": "a", "Value": "b"}]
        head = s3.client().head_object(Bucket=PREFIX, Key="replaced")
        assert (head["Metadata"], head.get("CacheControl")) == ({"new": "1"}, None)
        assert tags_of(s3.client(), "replaced") == [{"Key": "c", "Value": "d"}]


def test_tags_are_set_and_removed_and_all_else_stays(origin: S3Server, lake: S3, other: S3) -> None:
    """At the node that put the object, and at one that has it from the origin."""
    straight_client, bucket = origin_client(origin)
    for number, s3 in enumerate((lake, other)):
        key, client = f"tagged {number}", s3.client()
        lake.client().put_object(Bucket=PREFIX, Key=key, Body=b"bytes", **GIVEN)
        s3.host.ok("sync")
        before = client.head_object(Bucket=PREFIX, Key=key)
        assert tags_of(client, key) == []
        client.put_object_tagging(Bucket=PREFIX, Key=key, Tagging={"TagSet": TAGS})
        assert tags_of(client, key) == in_order(TAGS)
        assert in_order(straight_client.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]) == in_order(
            TAGS
        )
        client.delete_object_tagging(Bucket=PREFIX, Key=key)
        assert tags_of(client, key) == []
        assert straight_client.get_object_tagging(Bucket=bucket, Key=key)["TagSet"] == []
        after = client.head_object(Bucket=PREFIX, Key=key)
        assert (given_fields(after), after["ETag"]) == (GIVEN, before["ETag"])
        assert client.get_object(Bucket=PREFIX, Key=key)["Body"].read() == b"bytes"


def test_what_others_put_is_told_and_asked_for_once(origin: S3Server, lake: S3) -> None:
    client, bucket = origin_client(origin)
    client.put_object(Bucket=bucket, Key="theirs", Body=b"abc", Tagging="a=b", **GIVEN)
    lake.host.ok("sync")
    ours = lake.client()

    def asked() -> int:
        return int(lake.host.status()["origin"]["mounts"][f"/{PREFIX}"]["requests"])

    for turn in range(4):
        answer = ours.get_object(Bucket=PREFIX, Key="theirs")
        assert (answer["Body"].read(), given_fields(answer)) == (b"abc", GIVEN)
        assert given_fields(ours.head_object(Bucket=PREFIX, Key="theirs")) == GIVEN
        if turn == 0:
            before = asked()
    assert asked() == before
    with pytest.raises(ClientError) as raised:
        ours.get_object_tagging(Bucket=PREFIX, Key="theirs")
    assert code_of(raised) == ("NotImplemented", 501)
    ours.put_object_tagging(Bucket=PREFIX, Key="theirs", Tagging={"TagSet": TAGS})
    assert tags_of(ours, "theirs") == in_order(TAGS)
    assert given_fields(ours.head_object(Bucket=PREFIX, Key="theirs")) == GIVEN


def test_what_can_not_be_kept_is_refused(lake: S3) -> None:
    client = lake.client()
    many = [{"Key": str(number), "Value": ""} for number in range(11)]
    for arguments, code in (
        ({"Metadata": {"big": "x" * 2100}}, "MetadataTooLarge"),
        ({"Tagging": "a=1&a=2"}, "InvalidTag"),
        ({"Tagging": "&".join(f"{number}=" for number in range(11))}, "InvalidTag"),
        ({"Tagging": "a=" + "x" * 257}, "InvalidTag"),
        ({"Tagging": "a=b%26c"}, "InvalidTag"),
        ({"Tagging": "aws:a=b"}, "InvalidTag"),
        ({"Expires": "Thu, 01 Dec 2044 16:00:00 GMT"}, "NotImplemented"),
    ):
        with pytest.raises(ClientError) as raised:
            client.put_object(Bucket=PREFIX, Key="refused", Body=b"x", **arguments)
        assert code_of(raised)[0] == code
    client.put_object(Bucket=PREFIX, Key="refused", Body=b"x")
    with pytest.raises(ClientError) as raised:
        client.put_object_tagging(Bucket=PREFIX, Key="refused", Tagging={"TagSet": many})
    assert code_of(raised)[0] == "InvalidTag"
    with pytest.raises(ClientError) as raised:
        client.get_object_tagging(Bucket=PREFIX, Key="never")
    assert code_of(raised) == ("NoSuchKey", 404)


def test_rclone_and_aws_keep_metadata(lake: S3, other: S3, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    settings = {
        "AWS_ENDPOINT_URL": lake.url,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "HOME": str(tmp_path),
    }
    aws = program("aws")
    run_client(
        lake, aws, "s3", "cp", "--only-show-errors", "--metadata", "colour=blue", "--content-type", "text/x",
        tmp_path / "file", f"s3://{PREFIX}/aws", **settings,
    )  # fmt: skip
    settings = {
        "RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "RCLONE_CONFIG_H_TYPE": "s3",
        "RCLONE_CONFIG_H_PROVIDER": "Other",
        "RCLONE_CONFIG_H_ENDPOINT": lake.url,
        "RCLONE_CONFIG_H_ENV_AUTH": "true",
    }
    rclone = program("rclone")
    words = ("copyto", "-M", "--metadata-set", "colour=green", tmp_path / "file", f"h:{PREFIX}/rclone")
    run_client(lake, rclone, *words, **settings)
    other.host.ok("sync")
    client = other.client()
    head = client.head_object(Bucket=PREFIX, Key="aws")
    assert (head["Metadata"], head["ContentType"]) == ({"colour": "blue"}, "text/x")
    assert client.head_object(Bucket=PREFIX, Key="rclone")["Metadata"]["colour"] == "green"
