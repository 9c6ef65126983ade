"""The door itself: raw requests, connections that break off, a gateway and a node that die."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.integration.cli.host import Host, wait_until
from tests.integration.door.s3.conftest import READ, S3, WRITE, start

BODY = b"what is put"


class Open:
    """A node and a gateway that asks for no signatures."""

    def __init__(self, host: Host, url: str) -> None:
        self.host = host
        self.s3 = S3(url, host.truth, host.base / "origin", host)

    def gateway_pid(self) -> int:
        processes = self.host.processes().items()
        return next((pid for pid, words in processes if " s3 " in words and "--credentials" not in words), 0)


@pytest.fixture(scope="module")
def open_(needs_root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    host = Host(tmp_path_factory.mktemp("door"), write=f"off,/{WRITE}=back")
    try:
        start(host)
        yield Open(host, str(host.start("s3", "--address", "127.0.0.1:0", "--insecure").wait_ready()["url"]))
    finally:
        host.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def put_head(key: str, *lines: str) -> bytes:
    head = [f"PUT /{WRITE}/{key} HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""]
    return "\r\n".join(head).encode()


def get(open_: Open, key: str) -> bytes:
    answer = open_.s3.raw(f"GET {key} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert status_of(answer) == 200, answer[:200]
    return answer.partition(b"\r\n\r\n")[2]


def test_requests_in_one_piece_are_answered_in_order(open_: Open) -> None:
    names = ["small.bin", "nothing", "more.bin", "one.bin", "large.tar"]
    requests = [f"GET /{READ}/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n" for name in names]
    requests.append(f"HEAD /{READ}/more.bin HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    for _ in range(2):
        rest = open_.s3.raw("".join(requests).encode())
        for name in names:
            head, _, rest = rest.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            if name != "nothing":
                assert rest[:length] == (open_.s3.truth / name).read_bytes()
            assert status_of(head) == (404 if name == "nothing" else 200)
            rest = rest[length:]
        assert status_of(rest) == 200
        assert rest.endswith(b"\r\n\r\n")


def test_a_head_byte_by_byte(open_: Open) -> None:
    with socket.create_connection(open_.s3.address, timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in f"GET /{READ}/one.bin HTTP/1.1\r\nHost: localhost\r\n\r\n".encode():
            connection.sendall(bytes([byte]))
        assert status_of(connection.recv(65536)) == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 400),
        (b"GET /data/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"GET /data/%2e%2e/out/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        (b"PUT /out/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 411),
        (b"PUT /out/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (
            b"GET /data/one.bin HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
            400,
        ),
        ("GET /data?max-keys=² HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(), 400),
        (
            b"PUT /out/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"PUT /out/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (b"PATCH /out/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
    ],
)
def test_what_is_sent_by_whoever(open_: Open, request_: bytes, status: int) -> None:
    assert status_of(open_.s3.raw(request_)) == status


def test_bodies_by_every_framing(open_: Open) -> None:
    chunks = b"4\r\n" + BODY[:4] + b"\r\n" + b"%x\r\n" % len(BODY[4:]) + BODY[4:] + b"\r\n0\r\n\r\n"
    aws = b"%x;chunk-signature=0\r\n" % len(BODY) + BODY + b"\r\n0;chunk-signature=0\r\n\r\n"
    cases = {
        "length": (put_head("framed/length", f"Content-Length: {len(BODY)}"), BODY),
        "chunks": (put_head("framed/chunks", "Transfer-Encoding: chunked"), chunks),
        "aws": (
            put_head(
                "framed/aws",
                f"Content-Length: {len(aws)}",
                "Content-Encoding: aws-chunked",
                "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
                f"x-amz-decoded-content-length: {len(BODY)}",
            ),
            aws,
        ),
    }
    for name, (head, body) in cases.items():
        assert status_of(open_.s3.raw(head + body)) == 200, name
        assert get(open_, f"/{WRITE}/framed/{name}") == BODY


def test_who_asks_first_whether_to_send(open_: Open) -> None:
    with socket.create_connection(open_.s3.address, timeout=60) as connection:
        connection.sendall(put_head("expected", f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert status_of(connection.recv(65536)) == 200
    refused = put_head("x", "Content-Length: 5", "Expect: 100-continue").replace(b"/out/", b"/data/")
    assert status_of(open_.s3.raw(refused)) == 403


def test_a_large_body_that_is_refused_is_told_so(open_: Open) -> None:
    """The answer arrives, though the client has sent on."""
    with socket.create_connection(open_.s3.address, timeout=60) as connection:
        connection.sendall(put_head("x", f"Content-Length: {4 << 20}").replace(b"/out/", b"/data/"))
        connection.sendall(bytes(4 << 20))
        assert status_of(connection.recv(65536)) == 403


def test_a_put_that_breaks_off_leaves_what_was_there(open_: Open) -> None:
    assert status_of(open_.s3.raw(put_head("cut", f"Content-Length: {len(BODY)}") + BODY)) == 200
    with socket.create_connection(open_.s3.address, timeout=60) as connection:
        connection.sendall(put_head("cut", "Content-Length: 1000000") + bytes(500_000))
    assert get(open_, f"/{WRITE}/cut") == BODY
    assert list((open_.host.cache / "upper/work").iterdir()) == []


def test_a_killed_gateway_leaves_the_old_object(open_: Open) -> None:
    assert status_of(open_.s3.raw(put_head("killed", f"Content-Length: {len(BODY)}") + BODY)) == 200
    with socket.create_connection(open_.s3.address, timeout=60) as connection:
        connection.sendall(put_head("killed", f"Content-Length: {1 << 20}") + bytes((1 << 20) - 1))
        time.sleep(0.1)  # most of it is in the file
        os.kill(open_.gateway_pid(), signal.SIGKILL)
    wait_until(lambda: not open_.gateway_pid())
    host, port = open_.s3.address
    open_.host.start("s3", "--address", f"{host}:{port}", "--insecure").wait_ready()
    assert get(open_, f"/{WRITE}/killed") == BODY
    assert list((open_.host.cache / "upper/work").iterdir()) == []


def test_the_node_is_away(open_: Open) -> None:
    """Cached objects are served; a put is taken, and the node finds it when it is back."""
    truth = get(open_, f"/{READ}/more.bin")
    os.kill(open_.host.pid_of("node") or _node_of(open_.host), signal.SIGKILL)
    assert get(open_, f"/{READ}/more.bin") == truth == (open_.s3.truth / "more.bin").read_bytes()
    config = open_.host.base / "config.toml"
    open_.host.start("node", "run", "--config", config, "--cache", f"{open_.host.cache}:1GiB").wait_ready()
    assert get(open_, f"/{READ}/large.tar") == (open_.s3.truth / "large.tar").read_bytes()


def _node_of(host: Host) -> int:
    return next(pid for pid, words in host.processes().items() if " node run " in words)


def test_up_starts_a_gateway_and_starts_it_again(tmp_path: Path) -> None:
    host = Host(tmp_path, s3_address="127.0.0.1:0", s3_insecure=True)
    try:
        folder = host.truth / "bucket"
        folder.mkdir()
        (folder / "key").write_bytes(BODY)
        up = host.start("up", host.truth, "--cache", f"{host.cache}:1GiB")
        ready = up.wait_ready()
        s3 = S3(ready["s3"], host.truth, host.truth, host)
        request = b"GET /bucket/key HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert s3.raw(request).endswith(BODY)
        first = _gateway_of(host)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: _gateway_of(host) not in (0, first))
        host.ok("down")
        assert up.wait() == 0
        host.assert_nothing_left()
    finally:
        host.close()


def _gateway_of(host: Host) -> int:
    return next((pid for pid, words in host.processes().items() if "headrace.s3.main" in words), 0)


def test_where_it_does_not_listen(open_: Open) -> None:
    for words, why in (
        (("--address", "0.0.0.0:0"), "there is no s3_tls_certificate"),
        (("--address", "nonsense"), "not HOST:PORT"),
        (("--address", f"127.0.0.1:{open_.s3.address[1]}"), "in use"),
        (("--credentials", "/nowhere"), "No such file"),
    ):
        done = open_.host.headrace("s3", *words)
        assert done.returncode == 2, done.stderr
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def operations(s3: S3) -> dict[str, dict[str, int]]:
    """Return the operations of this directory's gateway, as `headrace status` shows them."""
    gateways = s3.host.status()["gateways"]
    (gateway,) = [row for row in gateways if row["address"] == "{}:{}".format(*s3.address)]
    assert gateway["kind"] == "s3"
    result: dict[str, dict[str, int]] = gateway["operations"]
    return result


def reported(s3: S3) -> dict[str, dict[str, int]]:
    """Return the operations when the node knows all that were asked so far. It may learn of one request of another test
    only now, so there are two: each report has all requests that were answered before."""
    client = s3.client()

    def count() -> int:
        return operations(s3).get("get_versioning", {}).get("requests", 0)

    known = count()
    for _ in range(2):
        client.get_bucket_versioning(Bucket=READ)
    wait_until(lambda: count() >= known + 2)
    return operations(s3)


def test_the_node_tells_what_was_asked(s3: S3) -> None:
    client = s3.client()
    before = reported(s3)
    size = (s3.truth / "more.bin").stat().st_size
    for _ in range(3):
        client.get_object(Bucket=READ, Key="more.bin")["Body"].read()
    client.get_object(Bucket=READ, Key="more.bin", Range="bytes=0-99")["Body"].read()
    client.head_object(Bucket=READ, Key="more.bin")
    client.put_object(Bucket=WRITE, Key="counted", Body=b"x" * 1000)
    with pytest.raises(ClientError):
        client.get_object(Bucket=READ, Key="never")
    after = reported(s3)

    def more(operation: str) -> dict[str, int]:
        old = before.get(operation, {})
        return {name: value - old.get(name, 0) for name, value in after[operation].items()}

    get = more("get_object")
    assert (get["requests"], get["refused"], get["failed"], get["bytes_in"]) == (5, 1, 0, 0)
    assert 3 * size + 100 <= get["bytes_out"] <= 3 * size + 1000  # and the error's text
    assert more("head_object") == {"requests": 1, "refused": 0, "failed": 0, "bytes_in": 0, "bytes_out": 0}
    assert more("put_object")["requests"] == 1
    assert more("put_object")["bytes_in"] >= 1000
    assert "get_object: " in s3.host.ok("status")
