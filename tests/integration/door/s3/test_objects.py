"""One object at a time, by boto3: every byte is compared with the origin's."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import threading
import zlib
from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError, ResponseStreamingError

from tests.integration.cli.host import wait_until
from tests.integration.door.s3.conftest import READ, S3, WRITE, code_of

SIZES = (0, 1, 4096, 65_535, 65_536, 65_537, (1 << 20) + 1, (9 << 20) + 7)


def data_of(size: int, seed: int = 0) -> bytes:
    return random.Random(f"{size} {seed}").randbytes(size)


def body_of(answer: dict[str, Any]) -> bytes:
    data = answer["Body"].read()
    assert answer["ContentLength"] == len(data)
    return bytes(data)


def test_objects_of_an_origin_are_read_whole_twice(s3: S3, client: Any) -> None:
    """Not cached, then cached."""
    names = [
        "empty.bin",
        "one.bin",
        "small.bin",
        "block.bin",
        "more.bin",
        "large.tar",
        "names/sp ace+plus&<.txt",
    ]
    for _ in range(2):
        for name in names:
            answer = client.get_object(Bucket=READ, Key=name)
            assert body_of(answer) == (s3.truth / name).read_bytes(), name
            head = client.head_object(Bucket=READ, Key=name)
            assert (head["ETag"], head["LastModified"]) == (answer["ETag"], answer["LastModified"])
            assert head["ContentLength"] == (s3.truth / name).stat().st_size
            assert int(head["LastModified"].timestamp()) == int((s3.truth / name).stat().st_mtime)


def test_an_object_that_a_program_writes_meanwhile_is_cut_short(s3: S3, client: Any) -> None:
    """The client must not take the bytes of two versions for one object."""
    old, new = (
        data_of(32 << 20, 1),
        data_of(32 << 20, 2),
    )  # more than the kernel keeps of a connection's bytes
    client.put_object(Bucket=WRITE, Key="written/meanwhile", Body=old)
    body = client.get_object(Bucket=WRITE, Key="written/meanwhile")["Body"]
    begin = body.read(1 << 20)
    with open(s3.host.cache / "upper/tree" / WRITE / "written/meanwhile", "r+b") as file:  # as a mount does
        file.write(new)
    assert begin == old[: 1 << 20]
    with pytest.raises((ResponseStreamingError, IncompleteReadError)):
        body.read()
    assert body_of(client.get_object(Bucket=WRITE, Key="written/meanwhile")) == new


@pytest.mark.parametrize("name", ["large.tar", "more.bin", "small.bin"])
def test_ranges(s3: S3, client: Any, name: str) -> None:
    truth = (s3.truth / name).read_bytes()
    size = len(truth)
    for start, end in (
        (0, 1),
        (1, 100),
        (size - 1, size),
        (size // 2, size),
        (0, size),
        (size // 3, size // 2),
    ):
        answer = client.get_object(Bucket=READ, Key=name, Range=f"bytes={start}-{end - 1}")
        assert body_of(answer) == truth[start:end]
        assert answer["ContentRange"] == f"bytes {start}-{end - 1}/{size}"
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert body_of(client.get_object(Bucket=READ, Key=name, Range="bytes=-10")) == truth[-10:]
    assert body_of(client.get_object(Bucket=READ, Key=name, Range=f"bytes=5-{size + 99}")) == truth[5:]
    with pytest.raises(ClientError) as raised:
        client.get_object(Bucket=READ, Key=name, Range=f"bytes={size}-")
    assert code_of(raised) == ("InvalidRange", 416)


def test_many_readers_at_once_of_what_is_not_cached(s3: S3) -> None:
    truth = s3.host.put("cold.tar", (12 << 20) + 5)
    s3.host.ok("sync")
    wrong: list[str] = []

    def read(n: int) -> None:
        client = s3.client(n)
        for round_ in range(3):
            start = (n * 1_000_003 + round_ * 7_777_777) % len(truth)
            data = client.get_object(Bucket=READ, Key="cold.tar", Range=f"bytes={start}-")["Body"].read()
            if data != truth[start:]:
                wrong.append(f"{n} {round_}")

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    (s3.truth / "cold.tar").unlink()


@pytest.mark.parametrize("size", SIZES)
def test_what_is_put_is_read_and_persisted(s3: S3, client: Any, size: int) -> None:
    data, key = data_of(size), f"put/deep/{size}"
    etag = client.put_object(Bucket=WRITE, Key=key, Body=data)["ETag"]
    assert etag == f'"{hashlib.md5(data).hexdigest()}"'
    answer = client.get_object(Bucket=WRITE, Key=key)
    assert (body_of(answer), answer["ETag"]) == (data, etag)
    persisted = s3.origin / key
    wait_until(lambda: persisted.exists() and persisted.read_bytes() == data)


def test_a_put_replaces_whole_and_its_etag_follows(client: Any) -> None:
    for seed in range(3):
        data = data_of(100_000 - seed, seed)
        etag = client.put_object(Bucket=WRITE, Key="again", Body=data)["ETag"]
        answer = client.get_object(Bucket=WRITE, Key="again", IfMatch=etag)
        assert body_of(answer) == data


def test_who_reads_keeps_the_version_that_was_opened(s3: S3) -> None:
    old, new = data_of(8 << 20, 1), data_of(8 << 20, 2)
    client, other = s3.client(), s3.client(1)
    client.put_object(Bucket=WRITE, Key="open", Body=old)
    stream = client.get_object(Bucket=WRITE, Key="open")["Body"]
    begin = stream.read(1000)
    other.put_object(Bucket=WRITE, Key="open", Body=new)
    assert begin + stream.read() == old
    assert body_of(other.get_object(Bucket=WRITE, Key="open")) == new


def test_conditions_of_reads(client: Any) -> None:
    etag = client.head_object(Bucket=READ, Key="small.bin")["ETag"]
    when = client.head_object(Bucket=READ, Key="small.bin")["LastModified"]
    for arguments, wanted in (
        ({"IfMatch": '"other"'}, ("PreconditionFailed", 412)),
        ({"IfNoneMatch": etag}, ("304", 304)),
        ({"IfModifiedSince": when}, ("304", 304)),
    ):
        with pytest.raises(ClientError) as raised:
            client.get_object(Bucket=READ, Key="small.bin", **arguments)
        assert code_of(raised) == wanted
    client.get_object(Bucket=READ, Key="small.bin", IfMatch=etag, IfUnmodifiedSince=when)


def test_conditions_of_puts(client: Any) -> None:
    client.delete_object(Bucket=WRITE, Key="condition")
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=WRITE, Key="condition", Body=b"0", IfMatch='"x"')
    assert code_of(raised) == ("NoSuchKey", 404)
    first = client.put_object(Bucket=WRITE, Key="condition", Body=b"1", IfNoneMatch="*")["ETag"]
    for arguments in ({"IfNoneMatch": "*"}, {"IfMatch": '"other"'}):
        with pytest.raises(ClientError) as raised:
            client.put_object(Bucket=WRITE, Key="condition", Body=b"2", **arguments)
        assert code_of(raised) == ("PreconditionFailed", 412)
    client.put_object(Bucket=WRITE, Key="condition", Body=b"3", IfMatch=first)
    assert body_of(client.get_object(Bucket=WRITE, Key="condition")) == b"3"
    with pytest.raises(ClientError) as raised:
        client.delete_object(Bucket=WRITE, Key="condition", IfMatch=first)
    assert code_of(raised) == ("PreconditionFailed", 412)


def test_of_many_who_make_a_key_one_does(s3: S3) -> None:
    outcomes: list[str] = []

    def make(n: int) -> None:
        try:
            s3.client(n).put_object(Bucket=WRITE, Key="race", Body=b"%d" % n, IfNoneMatch="*")
            outcomes.append(str(n))
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=make, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    winners = [outcome for outcome in outcomes if outcome.isdigit()]
    assert len(winners) == 1
    assert sorted(set(outcomes) - set(winners)) == ["PreconditionFailed"]
    assert body_of(s3.client().get_object(Bucket=WRITE, Key="race")).decode() == winners[0]


def test_checksums_that_do_not_match_leave_what_was_there(client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="sums", Body=b"right")
    wrong = base64.b64encode(hashlib.md5(b"else").digest()).decode()
    crc = base64.b64encode(zlib.crc32(b"else").to_bytes(4, "big")).decode()
    for arguments in ({"ContentMD5": wrong}, {"ChecksumCRC32": crc}):
        with pytest.raises(ClientError) as raised:
            client.put_object(Bucket=WRITE, Key="sums", Body=b"wrong", **arguments)
        assert code_of(raised) == ("BadDigest", 400)
    assert body_of(client.get_object(Bucket=WRITE, Key="sums")) == b"right"
    for name in ("CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"):
        answer = client.put_object(Bucket=WRITE, Key="sums", Body=b"right", ChecksumAlgorithm=name)
        assert answer[f"Checksum{name}"]


def test_copies(s3: S3, client: Any) -> None:
    truth = (s3.truth / "more.bin").read_bytes()
    client.copy_object(Bucket=WRITE, Key="copied", CopySource={"Bucket": READ, "Key": "more.bin"})
    assert body_of(client.get_object(Bucket=WRITE, Key="copied")) == truth
    etag = client.put_object(Bucket=WRITE, Key="source é", Body=b"abc")["ETag"]
    again = client.copy_object(Bucket=WRITE, Key="to", CopySource={"Bucket": WRITE, "Key": "source é"})
    assert again["CopyObjectResult"]["ETag"] == etag == client.head_object(Bucket=WRITE, Key="to")["ETag"]
    for arguments, wanted in (
        ({"CopySource": f"{WRITE}/nothing"}, ("NoSuchKey", 404)),
        ({"CopySource": f"{READ}/small.bin", "CopySourceIfMatch": '"x"'}, ("PreconditionFailed", 412)),
        ({"CopySource": f"{WRITE}/to"}, ("InvalidRequest", 400)),
    ):
        with pytest.raises(ClientError) as raised:
            client.copy_object(Bucket=WRITE, Key="to", **arguments)
        assert code_of(raised) == wanted


def test_deletes(s3: S3, client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="gone/deep/er", Body=b"x")
    wait_until(lambda: (s3.origin / "gone/deep/er").exists())
    client.delete_object(Bucket=WRITE, Key="gone/deep/er")
    client.delete_object(Bucket=WRITE, Key="gone/deep/er")
    with pytest.raises(ClientError) as raised:
        client.get_object(Bucket=WRITE, Key="gone/deep/er")
    assert code_of(raised) == ("NoSuchKey", 404)
    wait_until(lambda: not (s3.origin / "gone").exists())
    keys = [f"many/{n}" for n in range(5)]
    for key in keys:
        client.put_object(Bucket=WRITE, Key=key, Body=b"x")
    answer = client.delete_objects(
        Bucket=WRITE, Delete={"Objects": [{"Key": key} for key in [*keys, "never", "a//b"]]}
    )
    assert [row["Key"] for row in answer["Deleted"]] == [*keys, "never"]
    assert [(row["Key"], row["Code"]) for row in answer["Errors"]] == [("a//b", "InvalidArgument")]
    assert client.list_objects_v2(Bucket=WRITE, Prefix="many/")["KeyCount"] == 0


def test_folders_as_keys(client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="marker/", Body=b"")
    assert client.head_object(Bucket=WRITE, Key="marker/")["ContentLength"] == 0
    client.put_object(Bucket=WRITE, Key="marker/x", Body=b"1")
    client.delete_object(Bucket=WRITE, Key="marker/x")
    rows = client.list_objects_v2(Bucket=WRITE, Prefix="marker")["Contents"]
    assert [row["Key"] for row in rows] == ["marker/"]
    for key, code in (("marker", "KeyIsAFolder"), ("again2/x", "")):
        if code:
            with pytest.raises(ClientError) as raised:
                client.put_object(Bucket=WRITE, Key=key, Body=b"x")
            assert code_of(raised) == (code, 409)
    client.delete_object(Bucket=WRITE, Key="marker/")
    assert client.list_objects_v2(Bucket=WRITE, Prefix="marker")["KeyCount"] == 0
    client.put_object(Bucket=WRITE, Key="file", Body=b"x")
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=WRITE, Key="file/below", Body=b"x")
    assert code_of(raised) == ("ParentIsAnObject", 409)


@pytest.mark.parametrize("size", [1, 2, 300_000])
def test_a_folder_with_bytes_is_refused_as_such(client: Any, size: int) -> None:
    with pytest.raises(ClientError, match="is a folder here, and has no bytes") as raised:
        client.put_object(Bucket=WRITE, Key="bytes/", Body=b"x" * size)
    assert code_of(raised) == ("InvalidArgument", 400)
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=WRITE, Key="bytes/", Body=b"", ContentMD5="CY9rzUYh03PK3k6DJie09g==")
    assert code_of(raised) == ("BadDigest", 400)
    assert client.list_objects_v2(Bucket=WRITE, Prefix="bytes")["KeyCount"] == 0


def test_copies_of_folders(client: Any) -> None:
    top = "folders"
    client.put_object(Bucket=WRITE, Key=f"{top}/from/", Body=b"")
    client.put_object(Bucket=WRITE, Key=f"{top}/file of bytes", Body=b"bytes")
    client.put_object(Bucket=WRITE, Key=f"{top}/file without", Body=b"")

    def copy(source: str, target: str) -> None:
        client.copy_object(
            Bucket=WRITE, Key=f"{top}/{target}", CopySource={"Bucket": WRITE, "Key": f"{top}/{source}"}
        )

    for source, target in (("from/", "to/"), ("file without", "made/"), ("from/", "plain")):
        copy(source, target)
        assert client.head_object(Bucket=WRITE, Key=f"{top}/{target}")["ContentLength"] == 0
        rows = client.list_objects_v2(Bucket=WRITE, Prefix=f"{top}/{target}")["Contents"]
        assert [row["Key"] for row in rows] == [f"{top}/{target}"]
    for source, target, code in (
        ("file of bytes", "wrong/", "InvalidArgument"),
        ("file of bytes/", "wrong", "NoSuchKey"),
        ("nothing/", "wrong/", "NoSuchKey"),
        ("from/", "file of bytes/", "ParentIsAnObject"),
    ):
        with pytest.raises(ClientError) as raised:
            copy(source, target)
        assert code_of(raised)[0] == code, (source, target)
    assert client.list_objects_v2(Bucket=WRITE, Prefix=f"{top}/wrong")["KeyCount"] == 0
    assert body_of(client.get_object(Bucket=WRITE, Key=f"{top}/file of bytes")) == b"bytes"


def test_a_folder_is_made_once(s3: S3, client: Any) -> None:
    outcomes: list[str] = []

    def make(n: int) -> None:
        try:
            s3.client(n).put_object(Bucket=WRITE, Key="locks/one/", IfNoneMatch="*")
            outcomes.append("made")
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["PreconditionFailed"] * 3 + ["made"]
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=WRITE, Key="locks/other/", IfMatch='"x"')
    assert code_of(raised) == ("NoSuchKey", 404)


def test_what_can_not_be_done_truly_is_refused(client: Any) -> None:
    for arguments in (
        {"Metadata": {"any": "thing"}},
        {"Tagging": "a=b"},
        {"ContentEncoding": "gzip"},
        {"CacheControl": "no-store"},
        {"ACL": "public-read"},
    ):
        with pytest.raises(ClientError) as raised:
            client.put_object(Bucket=WRITE, Key="refused", Body=b"x", **arguments)
        assert code_of(raised) == ("NotImplemented", 501), arguments
    for call in (client.get_object_tagging, client.get_object_acl):
        with pytest.raises(ClientError) as raised:
            call(Bucket=READ, Key="small.bin")
        assert code_of(raised) == ("NotImplemented", 501)
    with pytest.raises(ClientError) as raised:
        client.put_object(Bucket=READ, Key="x", Body=b"x")
    assert code_of(raised) == ("AccessDenied", 403)
    with pytest.raises(ClientError) as raised:
        client.get_object(Bucket="nobucket", Key="x")
    assert code_of(raised) == ("NoSuchBucket", 404)


def test_a_time_that_a_client_gives(client: Any) -> None:
    client.put_object(Bucket=WRITE, Key="timed", Body=b"x", Metadata={"mtime": "1500000000.25"})
    head = client.head_object(Bucket=WRITE, Key="timed")
    assert head["Metadata"] == {"mtime": "1500000000.25"}
    assert head["LastModified"].timestamp() == 1_500_000_000


def test_presigned_urls(s3: S3) -> None:
    import urllib.request

    client = s3.client(signature_version="s3v4")
    arguments = {"Bucket": READ, "Key": "more.bin", "ResponseContentType": "text/plain"}
    url = client.generate_presigned_url("get_object", Params=arguments, ExpiresIn=60)
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read() == (s3.truth / "more.bin").read_bytes()
        assert answer.headers["Content-Type"] == "text/plain"
    put = client.generate_presigned_url(
        "put_object", Params={"Bucket": WRITE, "Key": "presigned"}, ExpiresIn=60
    )
    request = urllib.request.Request(put, data=os.urandom(1000), method="PUT")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
    assert body_of(client.get_object(Bucket=WRITE, Key="presigned")) == request.data


@pytest.mark.expected_warnings("refused interface=s3")
def test_who_may_not_ask(s3: S3) -> None:
    for arguments, code in (
        ({"secret": "wrong"}, "SignatureDoesNotMatch"),
        ({"access": "NOBODY"}, "InvalidAccessKeyId"),
    ):
        with pytest.raises(ClientError) as raised:
            s3.client(**arguments).get_object(Bucket=READ, Key="small.bin")
        assert code_of(raised) == (code, 403)
    host = s3.address[0]
    answer = s3.raw(f"GET /{READ}/small.bin HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"<Code>AccessDenied</Code>" in answer
