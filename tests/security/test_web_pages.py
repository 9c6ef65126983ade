"""A web page that a user of the host looks at reads and changes nothing by a gateway without keys (finding 6)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.http.messages import Request, parse_head
from headrace.s3.gateway import Access
from headrace.s3.gateway import S3Gateway as S3Gateway
from headrace.webhdfs.gateway import WebHdfsGateway as WebHdfsGateway
from tests.security.no_paths import NoPaths

pytestmark = pytest.mark.expected_warnings("refused interface")


SENT_BY_PAGES = {
    "a form": "Origin: https://evil.example\r\nContent-Type: text/plain",
    "a form of a file's page": "Origin: null",
    "an image": "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors",
    "a page of another port": "Sec-Fetch-Site: same-site",
}
OTHER_NAMES = [
    "evil.example",
    "evil.example:9000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1",
    "a b",
]
OWN_NAMES = [
    "127.0.0.1:9000",
    "localhost",
    "LOCALHOST:9000",
    "bucket.localhost:9000",
    "[::1]:9000",
    "s3.corp",
    "b.s3.corp",
]


def request(method: str, target: str, *, host: str = "127.0.0.1:9000", headers: str = "X-A: b") -> Request:
    return parse_head(f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n".encode())


def s3(*, loopback: bool = True, secrets: dict[str, str] | None = None) -> S3Gateway:
    return S3Gateway(
        cast(Any, NoPaths()), Access((lambda: secrets) if secrets else None, ("s3.corp",), loopback=loopback)
    )


def webhdfs() -> WebHdfsGateway:
    return WebHdfsGateway(cast(Any, NoPaths()), None, replicas=1, loopback=True)


S3_REQUESTS = [
    ("POST", "/bucket?delete"),
    ("GET", "/bucket/key"),
    ("PUT", "/bucket/key"),
    ("POST", "/bucket"),
]
HDFS_REQUESTS = [
    ("GET", "/webhdfs/v1/a?op=OPEN"),
    ("PUT", "/webhdfs/v1/a?op=MKDIRS"),
    ("DELETE", "/webhdfs/v1/a?op=DELETE"),
]


@pytest.mark.parametrize("how", SENT_BY_PAGES)
@pytest.mark.parametrize(("method", "target"), S3_REQUESTS)
def test_s3_refuses_what_a_page_sends(method: str, target: str, how: str) -> None:
    sent = request(method, target, headers=SENT_BY_PAGES[how])
    assert s3().cached(sent) is None
    response = s3().answer(sent, iter(()))
    assert response.status == 403
    assert b"web pages" in response.body


@pytest.mark.parametrize("host", OTHER_NAMES)
@pytest.mark.parametrize(("method", "target"), S3_REQUESTS)
def test_s3_refuses_a_name_that_was_made_to_lead_here(method: str, target: str, host: str) -> None:
    sent = request(method, target, host=host)
    assert s3().cached(sent) is None
    assert s3().answer(sent, iter(())).status == 403


@pytest.mark.parametrize("host", OWN_NAMES)
def test_s3_answers_to_its_own_names(host: str) -> None:
    gateway = s3()
    gateway._check_sender(request("GET", "/bucket/key", host=host))


def test_with_keys_a_page_may_ask_and_a_form_is_signed() -> None:
    gateway = s3(secrets={"AK": "secret"})
    sent = request("POST", "/bucket", headers="Origin: https://app.example\r\nContent-Type: text/plain")
    gateway._check_sender(sent)
    assert gateway.answer(sent, iter(())).status in (400, 403)


def test_beyond_loopback_every_name_may_lead_there() -> None:
    s3(loopback=False)._check_sender(request("GET", "/bucket/key", host="gateway.corp"))


@pytest.mark.parametrize("how", SENT_BY_PAGES)
@pytest.mark.parametrize(("method", "target"), HDFS_REQUESTS)
def test_webhdfs_refuses_what_a_page_sends(method: str, target: str, how: str) -> None:
    sent = request(method, target, headers=SENT_BY_PAGES[how])
    assert webhdfs().cached(sent) is None
    assert webhdfs().answer(sent, iter(())).status == 403


@pytest.mark.parametrize("host", OTHER_NAMES)
@pytest.mark.parametrize(("method", "target"), HDFS_REQUESTS)
def test_webhdfs_refuses_a_name_that_was_made_to_lead_here(method: str, target: str, host: str) -> None:
    sent = request(method, target, host=host)
    assert webhdfs().cached(sent) is None
    assert webhdfs().answer(sent, iter(())).status == 403
