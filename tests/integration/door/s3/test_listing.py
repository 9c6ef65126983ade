"""Listings in S3's order, page by page, and buckets."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.door.s3.conftest import READ, S3, WRITE, code_of

PREFIXES = ("", "names/", "names/a", "names/a/", "names/a/b", "names/ü", "nothing", "small.bin/")


def keys_of_truth(s3: S3, prefix: str = "") -> list[str]:
    """Return the keys as S3 orders them: by the bytes of whole keys."""
    keys = [str(file.relative_to(s3.truth)) for file in s3.truth.rglob("*") if file.is_file()]
    return sorted((key for key in keys if key.startswith(prefix)), key=str.encode)


def grouped(keys: list[str], prefix: str, delimiter: str) -> list[str]:
    groups: dict[str, None] = {}
    for key in keys:
        end = key.find(delimiter, len(prefix))
        groups[key if end < 0 else key[: end + len(delimiter)]] = None
    return sorted(groups, key=str.encode)


def listed(client: Any, **arguments: Any) -> list[str]:
    """All pages: keys and common prefixes in their order."""
    names: list[str] = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=READ, **arguments):
        rows = [row["Key"] for row in page.get("Contents", [])]
        rows += [row["Prefix"] for row in page.get("CommonPrefixes", [])]
        names += sorted(rows, key=str.encode)
        assert page["KeyCount"] == len(rows)
    return names


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    "prefix", ["", "names/", "names/a", "names/a/", "names/a/b", "names/ü", "nothing", "small.bin/"]
)
@pytest.mark.parametrize("delimiter", ["", "/", "a", "-"])
def test_pages(s3: S3, client: Any, prefix: str, delimiter: str, size: int) -> None:
    truth = keys_of_truth(s3, prefix)
    wanted = grouped(truth, prefix, delimiter) if delimiter else truth
    arguments = {"Delimiter": delimiter} if delimiter else {}
    names = listed(client, Prefix=prefix, PaginationConfig={"PageSize": size}, **arguments)
    assert names == wanted


def test_where_to_begin(s3: S3, client: Any) -> None:
    truth = keys_of_truth(s3)
    for key in [*truth, "names/a/", "names/a", "names/a/b/", "n", "zzz"]:
        assert listed(client, StartAfter=key) == [
            candidate for candidate in truth if candidate.encode() > key.encode()
        ]


def test_the_first_version_pages_too(s3: S3, client: Any) -> None:
    names, marker = [], ""
    while True:
        page = client.list_objects(Bucket=READ, Delimiter="/", MaxKeys=2, Marker=marker)
        rows = [row["Key"] for row in page.get("Contents", [])]
        names += sorted([*rows, *(row["Prefix"] for row in page.get("CommonPrefixes", []))])
        if not page["IsTruncated"]:
            break
        marker = page["NextMarker"]
    assert names == grouped(keys_of_truth(s3), "", "/")


def test_rows_say_what_head_says(s3: S3, client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="rows/ours", Body=b"12345")
    for bucket, key in ((READ, "more.bin"), (WRITE, "rows/ours")):
        row = client.list_objects_v2(Bucket=bucket, Prefix=key)["Contents"][0]
        head = client.head_object(Bucket=bucket, Key=key)
        assert (row["Size"], row["ETag"]) == (head["ContentLength"], head["ETag"])
        assert int(row["LastModified"].timestamp()) == int(head["LastModified"].timestamp())
    versions = client.list_object_versions(Bucket=WRITE, Prefix="rows/")["Versions"]
    assert [(version["Key"], version["VersionId"], version["IsLatest"]) for version in versions] == [
        ("rows/ours", "null", True)
    ]


def test_two_layers_are_one_listing(s3: S3, client: Any) -> None:
    """List keys that are at the origin, that are only here, that are in both, and that were removed."""
    for n in range(20):
        client.put_object(Bucket=WRITE, Key=f"layers/{n:02d}/k", Body=b"x")
    s3.host.ok("persist")
    s3.host.ok("free")
    for n in range(0, 20, 3):
        client.delete_object(Bucket=WRITE, Key=f"layers/{n:02d}/k")
    client.put_object(Bucket=WRITE, Key="layers/01-x", Body=b"x")
    wanted = sorted([f"layers/{n:02d}/k" for n in range(20) if n % 3], key=str.encode)
    wanted = sorted([*wanted, "layers/01-x"], key=str.encode)
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=WRITE, Prefix="layers/", PaginationConfig={"PageSize": 3}
    )
    assert [row["Key"] for page in pages for row in page["Contents"]] == wanted


def test_buckets(client: Any) -> None:
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == [READ, WRITE]
    client.head_bucket(Bucket=READ)
    assert client.get_bucket_location(Bucket=READ)["LocationConstraint"] is None
    assert "Status" not in client.get_bucket_versioning(Bucket=READ)
    with pytest.raises(ClientError) as raised:
        client.head_bucket(Bucket="nothing")
    assert code_of(raised) == ("404", 404)
    with pytest.raises(ClientError) as raised:
        client.create_bucket(Bucket=READ)
    assert code_of(raised) == ("BucketAlreadyOwnedByYou", 409)
    with pytest.raises(ClientError) as raised:
        client.create_bucket(Bucket="another")
    assert code_of(raised) == ("AccessDenied", 403)
    with pytest.raises(ClientError) as raised:
        client.list_objects_v2(Bucket="nothing")
    assert code_of(raised) == ("NoSuchBucket", 404)
