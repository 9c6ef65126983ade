"""Metadata of objects that are read at the version of a seal, by a mount below the root."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.testing.servers import S3Server
from tests.integration.door.s3.given_metadata import GIVEN, PREFIX, given_fields, origin_client, start_gateway

pytestmark = pytest.mark.timeout(90)


def test_a_sealed_object_has_its_metadata(origin: S3Server, tmp_path: Path) -> None:
    straight_client, bucket = origin_client(origin)
    for name in ("cached", "head only", "changed"):
        straight_client.put_object(Bucket=bucket, Key=f"set/{name}", Body=name.encode(), **GIVEN)
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first = start_gateway(origin, tmp_path / "first")
    second = start_gateway(origin, tmp_path / "second")
    try:
        first.host.ok("seal", f"/{PREFIX}/set", "--as", "set@1")
        first.host.ok("seal", "push", "set@1")
        straight_client.put_object(Bucket=bucket, Key="set/changed", Body=b"other")
        for s3 in (first, second):
            s3.host.ok("sync")
            client = s3.client()
            where = {"Bucket": PREFIX, "VersionId": "set@1"}
            for _ in range(2):
                head = client.head_object(**where, Key="set/head only")
                assert given_fields(head) == GIVEN
                answer = client.get_object(**where, Key="set/cached")
                assert (answer["Body"].read(), given_fields(answer)) == (b"cached", GIVEN)
        answer = first.client().get_object(Bucket=PREFIX, VersionId="set@1", Key="set/changed")
        assert (answer["Body"].read(), given_fields(answer)) == (b"changed", GIVEN)
    finally:
        first.host.close()
        second.host.close()
