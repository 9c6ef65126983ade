"""The WebHDFS gateway by TLS, and what it tells the node of its requests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import fsspec
import pytest
import requests

from tests.integration.cli.host import wait_until, with_settings
from tests.integration.door.certificates import make_certificate
from tests.integration.door.webhdfs.conftest import LIMIT_S, READ, WRITE, WebHdfs

pytestmark = [pytest.mark.timeout(60), pytest.mark.expected_warnings("why=no TLS connection")]


@dataclass(frozen=True)
class Tls:
    url: str
    certificate: str

    def ask(self, method: str, path: str, op: str, **more: str) -> requests.Response:
        return requests.request(
            method, f"{self.url}/webhdfs/v1{path}", params={"op": op, **more}, verify=self.certificate,
            allow_redirects=False, timeout=LIMIT_S,
        )  # fmt: skip


@pytest.fixture(scope="module")
def tls(webhdfs: WebHdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    """One more gateway of the same node."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "first")
    files = {"webhdfs_tls_certificate": folder / "certificate.pem", "webhdfs_tls_key": folder / "key.pem"}
    with with_settings(webhdfs.host, **files):
        gateway = webhdfs.host.start("webhdfs", "--insecure", "--address", "127.0.0.1:0")
        url = gateway.wait_ready()["url"]
    assert url.startswith("https://127.0.0.1:")
    yield Tls(url, str(folder / "certificate.pem"))
    gateway.signal(15)
    gateway.wait()


def test_reads_and_writes_are_the_same(webhdfs: WebHdfs, tls: Tls) -> None:
    for name in sorted(file.name for file in webhdfs.truth.iterdir() if file.is_file()):
        for _ in range(2):
            answer = tls.ask("GET", f"/{READ}/{name}", "OPEN")
            assert answer.content == (webhdfs.truth / name).read_bytes(), name
    data = random.Random(1).randbytes((9 << 20) + 5)
    first = tls.ask("PUT", f"/{WRITE}/tls", "CREATE")
    place = first.headers["Location"]
    assert (first.status_code, place.startswith(tls.url)) == (307, True)
    response = requests.put(place, data=data, verify=tls.certificate, timeout=LIMIT_S)
    assert response.status_code == 201
    assert response.headers["Location"] == f"swebhdfs://{tls.url.partition('//')[2]}/{WRITE}/tls"
    assert webhdfs.bytes_of(f"/{WRITE}/tls") == data


def test_fsspec_reads_and_writes_by_it(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", tls.certificate)  # which is above what a session says
    host, _, port = tls.url.partition("//")[2].partition(":")
    files = fsspec.filesystem(
        "webhdfs", host=host, port=int(port), user="me", use_https=True, skip_instance_cache=True
    )
    with files.open(f"/{WRITE}/by-fsspec", "wb") as out:
        out.write(b"some bytes")
    assert files.cat_file(f"/{WRITE}/by-fsspec") == b"some bytes"


def test_who_speaks_no_tls_gets_no_answer(tls: Tls) -> None:
    with pytest.raises(requests.ConnectionError):
        requests.get(tls.url.replace("https", "http") + f"/webhdfs/v1/{READ}?op=LISTSTATUS", timeout=LIMIT_S)
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{tls.url}/webhdfs/v1/{READ}?op=LISTSTATUS", timeout=LIMIT_S)


def test_settings_that_make_no_sense_are_named(webhdfs: WebHdfs, tls: Tls, tmp_path: Path) -> None:
    for given, wrong in (
        ({"webhdfs_tls_certificate": tls.certificate}, "both are needed"),
        ({"webhdfs_tls_certificate": tls.certificate, "webhdfs_tls_key": tmp_path / "none"}, "No such file"),
    ):
        with with_settings(webhdfs.host, **given):
            done = webhdfs.host.headrace("webhdfs", "--address", "127.0.0.1:0")
        assert done.returncode != 0
        assert wrong in done.stderr
        assert "Traceback" not in done.stderr


def test_status_tells_what_was_answered(webhdfs: WebHdfs) -> None:
    process = webhdfs.host.start("webhdfs", "--insecure", "--address", "127.0.0.1:0")
    fresh = replace(webhdfs, url=process.wait_ready()["url"])
    name = next(file for file in webhdfs.truth.iterdir() if file.is_file() and file.stat().st_size)
    for _ in range(2):
        fresh.bytes_of(f"/{READ}/{name.name}")
    fresh.ask("GET", f"/{READ}/never", "GETFILESTATUS")
    fresh.put(f"/{WRITE}/counted", b"12345")

    def rows() -> dict[str, tuple[int, ...]]:
        gateways = [
            gateway for gateway in webhdfs.host.status()["gateways"] if gateway["address"] in fresh.url
        ]
        assert all(gateway["kind"] == "webhdfs" for gateway in gateways)
        asked = ("requests", "refused", "failed", "bytes_in")
        return {
            operation: tuple(row[word] for word in asked)
            for gateway in gateways
            for operation, row in gateway["operations"].items()
        }

    wanted = {"open": (2, 0, 0, 0), "get_status": (1, 1, 0, 0), "create": (2, 0, 0, 5)}
    wait_until(lambda: rows() == wanted, 10, hint=lambda: str(rows()))
    assert "webhdfs" in webhdfs.host.ok("status")
    process.signal(15)
    process.wait()
