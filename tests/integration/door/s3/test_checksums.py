"""Checksums as S3 tells them, attributes of objects, and parts by their number, by boto3 and aws."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from typing import Any

import pytest
from botocore.exceptions import ClientError

from headrace.s3.checksums import make_checksum, text_of
from tests.integration.cli.host import wait_until
from tests.integration.door.s3.conftest import READ, S3, WRITE, code_of, program

PART = 5 << 20
DATA = random.Random(17).randbytes(2 * PART + 4321)
PIECES = [DATA[:PART], DATA[PART : 2 * PART], DATA[2 * PART :]]
ALL = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
ELEMENTS = {
    "crc32": "ChecksumCRC32",
    "crc32c": "ChecksumCRC32C",
    "crc64nvme": "ChecksumCRC64NVME",
    "sha1": "ChecksumSHA1",
    "sha256": "ChecksumSHA256",
}


def sum_of(algorithm: str, data: bytes) -> str:
    hashed = make_checksum(algorithm)
    hashed.update(data)
    return text_of(hashed.digest())


@pytest.mark.parametrize("algorithm", ELEMENTS)
def test_what_was_put_with_a_checksum_is_told_with_it(client: Any, algorithm: str) -> None:
    data, key, name = DATA[:70_001], f"checks/{algorithm}", ELEMENTS[algorithm]
    wanted = {name: sum_of(algorithm, data), "ChecksumType": "FULL_OBJECT"}
    put = client.put_object(Bucket=WRITE, Key=key, Body=data, ChecksumAlgorithm=algorithm.upper())
    assert {word: put[word] for word in wanted} == wanted
    head = client.head_object(Bucket=WRITE, Key=key, ChecksumMode="ENABLED")
    assert {word: head[word] for word in wanted} == wanted
    answer = client.get_object(Bucket=WRITE, Key=key, ChecksumMode="ENABLED")
    assert {word: answer[word] for word in wanted} == wanted
    assert answer["Body"].read() == data
    assert name not in client.head_object(Bucket=WRITE, Key=key)
    part = client.get_object(Bucket=WRITE, Key=key, ChecksumMode="ENABLED", Range="bytes=5-9")
    assert name not in part
    assert part["Body"].read() == data[5:10]
    about = client.get_object_attributes(Bucket=WRITE, Key=key, ObjectAttributes=ALL)
    assert about["Checksum"] == wanted
    assert (about["ObjectSize"], about["ETag"]) == (len(data), head["ETag"].strip('"'))
    assert "ObjectParts" not in about
    client.copy_object(Bucket=WRITE, Key=f"{key}.copy", CopySource={"Bucket": WRITE, "Key": key})
    assert client.head_object(Bucket=WRITE, Key=f"{key}.copy", ChecksumMode="ENABLED")[name] == wanted[name]


def test_what_was_put_elsewhere_has_none_and_a_new_object_has_its_own(s3: S3, client: Any) -> None:
    for _ in range(2):
        answer = client.get_object(Bucket=READ, Key="small.bin", ChecksumMode="ENABLED")
        assert answer["Body"].read() == (s3.truth / "small.bin").read_bytes()
        assert not set(ELEMENTS.values()) & set(answer)
    about = client.get_object_attributes(Bucket=READ, Key="small.bin", ObjectAttributes=ALL)
    assert (about["ObjectSize"], "Checksum" in about) == (4096, False)
    client.put_object(Bucket=WRITE, Key="checks/other", Body=b"one", ChecksumAlgorithm="SHA256")
    client.put_object(Bucket=WRITE, Key="checks/other", Body=b"two", ChecksumAlgorithm="CRC32")
    head = client.head_object(Bucket=WRITE, Key="checks/other", ChecksumMode="ENABLED")
    assert (head["ChecksumCRC32"], "ChecksumSHA256" in head) == (sum_of("crc32", b"two"), False)


def test_a_checksum_that_does_not_match_and_a_type_that_can_not_be(client: Any) -> None:
    named = {"Bucket": WRITE, "Key": "checks/kept"}
    client.put_object(**named, Body=b"old")
    with pytest.raises(ClientError) as raised:
        client.put_object(**named, Body=b"new", ChecksumCRC32=sum_of("crc32", b"other"))
    assert code_of(raised) == ("BadDigest", 400)

    def add_type(params: dict[str, Any], **_: Any) -> None:
        params["headers"]["x-amz-checksum-type"] = "COMPOSITE"

    client.meta.events.register("before-call.s3.PutObject", add_type)
    try:
        with pytest.raises(ClientError) as raised:
            client.put_object(**named, Body=b"new")
    finally:
        client.meta.events.unregister("before-call.s3.PutObject", add_type)  # other tests use the client, too
    assert code_of(raised) == ("InvalidRequest", 400)
    with pytest.raises(ClientError) as raised:
        client.create_multipart_upload(**named, ChecksumAlgorithm="SHA256", ChecksumType="FULL_OBJECT")
    assert code_of(raised) == ("InvalidRequest", 400)
    assert client.get_object(**named)["Body"].read() == b"old"


@pytest.mark.parametrize(
    ("algorithm", "kind"), [("crc32", "FULL_OBJECT"), ("crc64nvme", "FULL_OBJECT"), ("sha256", "COMPOSITE")]
)
def test_an_upload_in_parts_has_the_checksum_it_was_begun_for(client: Any, algorithm: str, kind: str) -> None:
    key, name = f"checks/parts-{algorithm}", ELEMENTS[algorithm]
    named = {"Bucket": WRITE, "Key": key}
    upload = client.create_multipart_upload(**named, ChecksumAlgorithm=algorithm.upper(), ChecksumType=kind)
    assert (upload["ChecksumAlgorithm"], upload["ChecksumType"]) == (algorithm.upper(), kind)
    named["UploadId"] = upload["UploadId"]
    sent = [
        client.upload_part(**named, PartNumber=number, Body=piece, ChecksumAlgorithm=algorithm.upper())
        for number, piece in enumerate(PIECES, 1)
    ]
    assert [part[name] for part in sent] == [sum_of(algorithm, piece) for piece in PIECES]
    assert [part[name] for part in client.list_parts(**named)["Parts"]] == [part[name] for part in sent]
    parts = [{"PartNumber": n, "ETag": part["ETag"], name: part[name]} for n, part in enumerate(sent, 1)]
    wrong = [parts[0] | {name: parts[1][name]}, *parts[1:]]
    with pytest.raises(ClientError) as raised:
        client.complete_multipart_upload(**named, MultipartUpload={"Parts": wrong})
    assert code_of(raised) == ("InvalidPart", 400)
    other = {name: sum_of(algorithm, b"other")}
    with pytest.raises(ClientError) as raised:
        client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts}, **other)
    assert code_of(raised) == ("BadDigest", 400)
    whole = sum_of(algorithm, DATA)
    if kind == "COMPOSITE":
        whole = sum_of(algorithm, b"".join(base64.b64decode(part[name]) for part in sent)) + "-3"
    said = {name: whole, "ChecksumType": kind, "MpuObjectSize": len(DATA)}
    done = client.complete_multipart_upload(**named, MultipartUpload={"Parts": parts}, **said)
    assert (done[name], done["ChecksumType"]) == (whole, kind)
    check_parts(client, key, {name: whole, "ChecksumType": kind})


def check_parts(client: Any, key: str, checksum: dict[str, str]) -> None:
    """Compare the checksums of an object that was put in PIECES."""
    named = {"Bucket": WRITE, "Key": key}
    head = client.head_object(**named, ChecksumMode="ENABLED")
    assert {word: head[word] for word in checksum} == checksum
    assert client.get_object(**named)["Body"].read() == DATA
    about = client.get_object_attributes(**named, ObjectAttributes=ALL, MaxParts=2)
    assert about["Checksum"] == checksum
    listed = about["ObjectParts"]
    assert (listed["TotalPartsCount"], listed["IsTruncated"]) == (3, True)
    assert [part["Size"] for part in listed["Parts"]] == [PART, PART]
    for number, piece in enumerate(PIECES, 1):
        answer = client.get_object(**named, PartNumber=number)
        assert answer["PartsCount"] == 3
        assert answer["Body"].read() == piece
        assert client.head_object(**named, PartNumber=number)["ContentLength"] == len(piece)
    with pytest.raises(ClientError) as raised:
        client.get_object(**named, PartNumber=4)
    assert code_of(raised) == ("InvalidPartNumber", 416)


def test_part_one_of_an_object_in_one_piece(s3: S3, client: Any) -> None:
    answer = client.get_object(Bucket=READ, Key="small.bin", PartNumber=1)
    assert answer["Body"].read() == (s3.truth / "small.bin").read_bytes()
    assert client.get_object(Bucket=READ, Key="empty.bin", PartNumber=1)["Body"].read() == b""
    with pytest.raises(ClientError) as raised:
        client.get_object(Bucket=READ, Key="small.bin", PartNumber=2)
    assert code_of(raised) == ("InvalidPartNumber", 416)


def test_attributes_of_nothing_and_by_words_that_are_none(client: Any) -> None:
    for key, words, wanted in (
        ("nothing", ALL, ("NoSuchKey", 404)),
        ("small.bin", ["Weight"], ("InvalidArgument", 400)),
        ("small.bin", ["ETag", "Weight"], ("InvalidArgument", 400)),
    ):
        with pytest.raises(ClientError) as raised:
            client.get_object_attributes(Bucket=READ, Key=key, ObjectAttributes=words)
        assert code_of(raised) == wanted


def test_aws_asks_for_attributes(s3: S3, client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="checks/aws", Body=DATA[:9999], ChecksumAlgorithm="SHA1")
    words = [program("aws"), "--endpoint-url", s3.url, "s3api", "get-object-attributes", "--bucket", WRITE]
    words += ["--key", "checks/aws", "--object-attributes", "Checksum", "ObjectSize"]
    done = subprocess.run(words, env=s3.environment(), capture_output=True, timeout=60, check=True)
    about = json.loads(done.stdout)
    assert (about["ObjectSize"], about["Checksum"]["ChecksumSHA1"]) == (9999, sum_of("sha1", DATA[:9999]))


def test_a_persisted_object_keeps_its_checksum_while_its_file_is_here(s3: S3, client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="checks/persisted", Body=DATA[:5000], ChecksumAlgorithm="CRC32")
    wait_until(lambda: (s3.origin / "checks/persisted").exists())
    head = client.head_object(Bucket=WRITE, Key="checks/persisted", ChecksumMode="ENABLED")
    assert head["ChecksumCRC32"] == sum_of("crc32", DATA[:5000])
    assert (s3.origin / "checks/persisted").read_bytes() == DATA[:5000]
