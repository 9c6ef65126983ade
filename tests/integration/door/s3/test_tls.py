"""The gateway by TLS: the same bytes, and nothing that is no TLS gets further than the door."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import SSLError

from tests.integration.cli.host import wait_until, with_settings
from tests.integration.door.certificates import make_certificate
from tests.integration.door.s3.conftest import ACCESS, READ, REGION, S3, SECRET, WRITE

pytestmark = [pytest.mark.timeout(90), pytest.mark.expected_warnings("why=no TLS connection")]


@dataclass(frozen=True)
class Tls:
    s3: S3
    url: str
    folder: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            verify=str(self.folder / "certificate.pem"),
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )


@pytest.fixture(scope="module")
def tls(s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    """One more gateway of the same node."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "first")
    given = {"s3_tls_certificate": folder / "certificate.pem", "s3_tls_key": folder / "key.pem"}
    with with_settings(s3.host, **given):
        gateway = s3.host.start("s3", "--address", "127.0.0.1:0", "--credentials", s3.host.base / "keys")
        url = gateway.wait_ready()["url"]
    assert url.startswith("https://127.0.0.1:")
    yield Tls(s3, url, folder)
    gateway.signal(15)
    gateway.wait()


def test_reads_and_writes_are_the_same(tls: Tls) -> None:
    client = tls.client()
    for _ in range(2):
        for name in ("empty.bin", "one.bin", "small.bin", "block.bin", "more.bin", "large.tar"):
            truth = (tls.s3.truth / name).read_bytes()
            assert client.get_object(Bucket=READ, Key=name)["Body"].read() == truth
            if truth:
                part = client.get_object(Bucket=READ, Key=name, Range="bytes=-1000")["Body"].read()
                assert part == truth[-1000:]
    for size in (0, 1, 300_000, (12 << 20) + 5):
        data = random.Random(size).randbytes(size)
        etag = client.put_object(Bucket=WRITE, Key=f"tls/{size}", Body=data)["ETag"]
        assert etag == f'"{hashlib.md5(data).hexdigest()}"'
        assert tls.s3.client().get_object(Bucket=WRITE, Key=f"tls/{size}")["Body"].read() == data
    keys = [row["Key"] for row in client.list_objects_v2(Bucket=WRITE, Prefix="tls/")["Contents"]]
    assert len(keys) == 4


def test_a_completed_upload_names_a_url_that_can_be_used(tls: Tls) -> None:
    client, name = tls.client(), {"Bucket": WRITE, "Key": "tls-parts/a b+ü"}
    upload = client.create_multipart_upload(**name)["UploadId"]
    part = client.upload_part(**name, UploadId=upload, PartNumber=1, Body=b"a part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    done = client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload=parts)
    assert done["Location"] == f"{tls.url}/{WRITE}/tls-parts/a%20b%2B%C3%BC"
    assert client.get_object(**name)["Body"].read() == b"a part"


@pytest.mark.expected_warnings("why=AccessDenied")
def test_many_at_once_and_requests_that_follow_each_other_at_once(tls: Tls) -> None:
    truth = (tls.s3.truth / "large.tar").read_bytes()
    wrong: list[int] = []

    def read(number: int) -> None:
        client = tls.client()
        for turn in range(4):
            start = (number * 1_000_003 + turn * 5_555_555) % len(truth)
            if (
                client.get_object(Bucket=READ, Key="large.tar", Range=f"bytes={start}-")["Body"].read()
                != truth[start:]
            ):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    with raw(tls) as sock:  # two requests in one record
        head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
        sock.sendall(head % b"" + head % b"Connection: close\r\n")
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 403 ") == 2


@contextlib.contextmanager
def raw(tls: Tls) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=str(tls.folder / "certificate.pem"))
    with socket.create_connection(("127.0.0.1", tls.port), timeout=60) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
            yield sock


def test_who_speaks_no_tls_or_nothing_holds_nobody_up(tls: Tls) -> None:
    silent = [socket.create_connection(("127.0.0.1", tls.port), timeout=60) for _ in range(20)]
    try:
        with socket.create_connection(("127.0.0.1", tls.port), timeout=60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP/1.1 " not in plain.recv(4096)
        body = tls.client().get_object(Bucket=READ, Key="one.bin")["Body"].read()
        assert body == (tls.s3.truth / "one.bin").read_bytes()
    finally:
        for connection in silent:
            connection.close()


def test_a_renewed_certificate_is_taken(tls: Tls) -> None:
    address = ("127.0.0.1", tls.port)
    first = ssl.get_server_certificate(address)
    client = tls.client()
    client.head_object(Bucket=READ, Key="one.bin")
    shutil.copy(tls.folder / "certificate.pem", tls.folder / "old.pem")
    make_certificate(tls.folder, "second")
    wait_until(lambda: ssl.get_server_certificate(address) != first, 10)
    assert ssl.get_server_certificate(address).strip() == (tls.folder / "certificate.pem").read_text().strip()
    tls.client().head_object(Bucket=READ, Key="one.bin")
    distrusting = boto3.client(
        "s3", endpoint_url=tls.url, region_name=REGION, aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET, verify=str(tls.folder / "old.pem"),
        config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip
    with pytest.raises(SSLError):
        distrusting.list_buckets()


def test_where_others_reach_it_it_needs_tls_and_keys(s3: S3, tls: Tls, tmp_path: Path) -> None:
    files = {"s3_tls_certificate": tls.folder / "certificate.pem", "s3_tls_key": tls.folder / "key.pem"}
    keys = s3.host.base / "keys"
    for given, lacking in (
        ({}, "no s3_tls_certificate and no s3_credentials"),
        (files, "there is no s3_credentials"),
        ({"s3_credentials": keys}, "there is no s3_tls_certificate"),
        ({"s3_tls_certificate": "x"}, "both are needed"),
        ({**files, "s3_tls_key": keys, "s3_credentials": keys}, "PEM"),
        ({**files, "s3_tls_certificate": tmp_path / "none", "s3_credentials": keys}, "No such file"),
    ):
        with with_settings(s3.host, **given):
            done = s3.host.headrace("s3", "--address", "0.0.0.0:0")
        assert done.returncode != 0
        assert lacking in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    with with_settings(s3.host, **files, s3_credentials=keys):
        gateway = s3.host.start("s3", "--address", "0.0.0.0:0")
        assert gateway.wait_ready()["url"].startswith("https://0.0.0.0:")
        gateway.signal(15)
        gateway.wait()
