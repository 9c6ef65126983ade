"""The gateway as a process: where it listens, a node that is away, `up` that starts it, a gateway that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest
import requests

from tests.integration.cli.host import Host, wait_until
from tests.integration.door.webhdfs.conftest import READ, WRITE, WebHdfs, start


def gateway_of(host: Host) -> int:
    processes = host.processes().items()
    return next(
        (pid for pid, words in processes if "headrace.webhdfs.main" in words or " webhdfs " in words), 0
    )


def test_where_it_does_not_listen(webhdfs: WebHdfs) -> None:
    for words, why in (
        (("--address", "0.0.0.0:0"), "other hosts reach it"),
        (("--address", "nonsense"), "not HOST:PORT"),
        (("--address", f"127.0.0.1:{webhdfs.address[1]}"), "in use"),
    ):
        done = webhdfs.host.headrace("webhdfs", *words)
        assert done.returncode == 2, done.stderr
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_it_listens_for_others_where_that_is_said(webhdfs: WebHdfs) -> None:
    up = webhdfs.host.start("webhdfs", "--address", "0.0.0.0:0", "--insecure")
    try:
        port = up.wait_ready()["url"].rpartition(":")[2]
        answer = requests.get(f"http://127.0.0.1:{port}/webhdfs/v1/?op=LISTSTATUS", timeout=60)
        names = [row["pathSuffix"] for row in answer.json()["FileStatuses"]["FileStatus"]]
        assert names == [READ, WRITE]
    finally:
        up.signal(signal.SIGTERM)
        assert up.wait() == 0


def test_a_connection_is_used_again(webhdfs: WebHdfs) -> None:
    names = ("small.bin", "nothing", "more.bin", "one.bin")
    with requests.Session() as session:
        head = session.head(f"{webhdfs.url}/webhdfs/v1/?op=OPEN", timeout=60)
        assert (head.status_code, head.content) == (400, b"")
        for name in names:
            url = f"{webhdfs.url}/webhdfs/v1/{READ}/{name}?op=OPEN"
            answer = session.get(url, timeout=60)
            there = webhdfs.truth / name
            assert answer.status_code == (200 if there.exists() else 404)
            assert not there.exists() or answer.content == there.read_bytes()


def test_hadoops_client_is_not_told_the_type_of_json(webhdfs: WebHdfs) -> None:
    """It fails where it is told; others may want it."""
    for path in (f"/{READ}/one.bin", f"/{READ}/nothing"):
        url = f"{webhdfs.url}/webhdfs/v1{path}?op=GETFILESTATUS"
        java = requests.get(url, headers={"User-Agent": "Java/17.0.15"}, timeout=60)
        assert "Content-Type" not in java.headers
        other = requests.get(url, timeout=60)
        assert other.headers["Content-Type"] == "application/json"
        assert java.json() == other.json()


@pytest.mark.timeout(120)
def test_the_gateway_and_the_node_are_killed(tmp_path: Path) -> None:
    """Cached files are served while the node is away; a put that broke off with its gateway leaves the old file."""
    host = Host(tmp_path, write=f"off,/{WRITE}=back", persist_delay_s=0.1)
    try:
        webhdfs = WebHdfs(start(host), host.truth, host.base / "origin", host)
        webhdfs.put(f"/{WRITE}/file", b"old")
        head = f"PUT /webhdfs/v1/{WRITE}/file?op=CREATE&overwrite=true&data=true HTTP/1.1\r\n"
        with socket.create_connection(webhdfs.address, timeout=60) as connection:
            connection.sendall(
                f"{head}Host: localhost\r\nContent-Length: 1000000\r\n\r\n".encode() + bytes(500_000)
            )
            os.kill(gateway_of(host), signal.SIGKILL)
            with contextlib.suppress(ConnectionResetError):  # it had not read all that came
                assert connection.recv(1) == b""
        wait_until(lambda: gateway_of(host) == 0)
        again = host.start("webhdfs", "--insecure", "--address", f"127.0.0.1:{webhdfs.address[1]}")
        again.wait_ready()
        assert webhdfs.bytes_of(f"/{WRITE}/file") == b"old"
        assert list((host.cache / "upper/work").iterdir()) == []
        truth = webhdfs.bytes_of(f"/{READ}/more.bin")
        node = next(pid for pid, words in host.processes().items() if " node run " in words)
        os.kill(node, signal.SIGKILL)
        assert webhdfs.bytes_of(f"/{READ}/more.bin") == truth == (host.truth / "more.bin").read_bytes()
        config = host.base / "config.toml"
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        assert webhdfs.bytes_of(f"/{READ}/large.tar") == (host.truth / "large.tar").read_bytes()
    finally:
        host.close()


def test_up_starts_both_gateways_and_starts_them_again(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        webhdfs_address="127.0.0.1:0",
        s3_address="127.0.0.1:0",
        webhdfs_insecure=True,
        s3_insecure=True,
    )
    try:
        (host.truth / "bucket").mkdir()
        (host.truth / "bucket/key").write_bytes(b"kept")
        up = host.start("up", host.truth, "--cache", f"{host.cache}:1GiB")
        ready = up.wait_ready()
        assert requests.get(f"{ready['s3']}/bucket/key", timeout=60).content == b"kept"
        webhdfs = WebHdfs(ready["webhdfs"], host.truth, host.truth, host)
        assert webhdfs.bytes_of("/bucket/key") == b"kept"
        first = gateway_of(host)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: gateway_of(host) not in (0, first))
        host.ok("down")
        assert up.wait() == 0
        host.assert_nothing_left()
    finally:
        host.close()
