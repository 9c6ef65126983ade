"""Uploads in parts: put together in order, given up, over a restart of the gateway, and silent ones."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from headrace.base.boot_clock import Moment, boot_id, now_s
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3.uploads import IDLE_S_MAX, LAST_PART_ATTRIBUTE, About, Uploads
from tests.integration.door.s3.conftest import READ, S3, WRITE, code_of

PART = 5 << 20


def begin(client: Any, key: str) -> dict[str, str]:
    """The arguments of all that follows."""
    answer = client.create_multipart_upload(Bucket=WRITE, Key=key)
    return {"Bucket": WRITE, "Key": key, "UploadId": answer["UploadId"]}


def send(client: Any, upload: dict[str, str], number: int, data: bytes) -> dict[str, Any]:
    answer = client.upload_part(**upload, PartNumber=number, Body=data)
    assert answer["ETag"] == f'"{hashlib.md5(data).hexdigest()}"'
    return {"PartNumber": number, "ETag": answer["ETag"]}


def complete(client: Any, upload: dict[str, str], parts: list[dict[str, Any]], **more: str) -> Any:
    return client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **more)


def staged(s3: S3) -> list[Path]:
    folder = s3.host.cache / "upper/uploads"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_parts_in_any_order_and_again(s3: S3, client: Any) -> None:
    random_ = random.Random(1)
    data = [random_.randbytes(size) for size in (PART, PART + 1, 1000)]
    upload = begin(client, "parts/whole")
    send(client, upload, 1, random_.randbytes(PART))
    last, first, middle = (send(client, upload, n, data[index]) for n, index in ((9, 2), (1, 0), (4, 1)))
    rows = client.list_parts(**upload)["Parts"]
    assert [(row["PartNumber"], row["Size"]) for row in rows] == [(1, PART), (4, PART + 1), (9, 1000)]
    listed = client.list_multipart_uploads(Bucket=WRITE, Prefix="parts/")["Uploads"]
    assert [(row["Key"], row["UploadId"]) for row in listed] == [("parts/whole", upload["UploadId"])]
    with pytest.raises(ClientError):
        client.head_object(Bucket=WRITE, Key="parts/whole")
    etag = complete(client, upload, [first, middle, last])["ETag"]
    digests = b"".join(hashlib.md5(part).digest() for part in data)
    assert etag == f'"{hashlib.md5(digests).hexdigest()}-3"'
    answer = client.get_object(Bucket=WRITE, Key="parts/whole")
    assert (answer["Body"].read(), answer["ETag"]) == (b"".join(data), etag)
    assert not any(path.name == upload["UploadId"] for path in staged(s3))
    assert complete(client, upload, [first, middle, last])["ETag"] == etag, "its answer may have been lost"
    with pytest.raises(ClientError) as raised:
        complete(client, upload, [first, middle])
    assert code_of(raised) == ("NoSuchUpload", 404)


def test_parts_of_other_objects(s3: S3, client: Any) -> None:
    truth = (s3.truth / "large.tar").read_bytes()
    upload = begin(client, "parts/copied")
    parts = []
    for number, (start, end) in enumerate(((0, PART), (PART, 3 * PART + 17), (3 * PART + 17, len(truth))), 1):
        answer = client.upload_part_copy(
            **upload,
            PartNumber=number,
            CopySource=f"{READ}/large.tar",
            CopySourceRange=f"bytes={start}-{end - 1}",
        )
        parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
    complete(client, upload, parts)
    assert client.get_object(Bucket=WRITE, Key="parts/copied")["Body"].read() == truth
    with pytest.raises(ClientError):
        client.upload_part_copy(
            **upload, PartNumber=1, CopySource=f"{READ}/one.bin", CopySourceRange="bytes=0-9"
        )


def test_what_can_not_be_put_together(client: Any) -> None:
    upload = begin(client, "parts/wrong")
    small, other = (send(client, upload, n, b"x" * n) for n in (1, 2))
    cases = {
        "EntityTooSmall": [small, other],
        "InvalidPartOrder": [other, small],
        "InvalidPart": [{"PartNumber": 1, "ETag": '"0"'}],
    }
    for code, parts in cases.items():
        with pytest.raises(ClientError) as raised:
            complete(client, upload, parts)
        assert code_of(raised) == (code, 400)
    client.put_object(Bucket=WRITE, Key="parts/wrong", Body=b"there")
    with pytest.raises(ClientError) as raised:
        complete(client, upload, [small], IfNoneMatch="*")
    assert code_of(raised) == ("PreconditionFailed", 412)
    assert client.get_object(Bucket=WRITE, Key="parts/wrong")["Body"].read() == b"there"
    complete(client, upload, [small])
    assert client.get_object(Bucket=WRITE, Key="parts/wrong")["Body"].read() == b"x"


def test_an_upload_that_is_given_up_leaves_nothing(s3: S3, client: Any) -> None:
    upload = begin(client, "parts/aborted")
    send(client, upload, 1, b"x" * 1000)
    client.abort_multipart_upload(**upload)
    assert not any(upload["UploadId"] in path.name for path in staged(s3))
    calls: list[tuple[Any, dict[str, Any]]] = [
        (client.upload_part, {**upload, "PartNumber": 1, "Body": b"x"}),
        (client.list_parts, upload),
        (client.abort_multipart_upload, upload),
        (client.abort_multipart_upload, {**upload, "UploadId": "../../tree"}),
    ]
    for call, arguments in calls:
        with pytest.raises(ClientError) as raised:
            call(**arguments)
        assert code_of(raised) == ("NoSuchUpload", 404)
    with pytest.raises(ClientError) as raised:
        client.create_multipart_upload(Bucket=READ, Key="x")
    assert code_of(raised) == ("AccessDenied", 403)


def test_silent_uploads_and_what_crashes_left_go(tmp_path: Path) -> None:
    uploads = Uploads(os.fsencode(tmp_path / "uploads"), DurableWrites(os.fsencode(tmp_path), lambda: True))
    old, young = (uploads.begin(About(b"b", b"k", 0.0)) for _ in range(2))
    (tmp_path / f"uploads/gone-{old}").mkdir()
    long_ago = Moment(boot_id(), now_s() - IDLE_S_MAX - 10)
    for name in (old, f"gone-{old}"):
        os.setxattr(tmp_path / "uploads" / name, LAST_PART_ATTRIBUTE, msgspec.json.encode(long_ago))
    assert uploads.remove_idle() == 2
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [young]
