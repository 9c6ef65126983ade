"""Browsers' forms, as boto3 presigns them, sent by requests: bytes compared, and what a policy does not allow."""

from __future__ import annotations

import random
from typing import Any

import pytest
import requests
from botocore.exceptions import ClientError

from tests.integration.door.s3.conftest import S3, WRITE

DATA = random.Random(23).randbytes(700_001)
LIMIT_S = 30.0


def send(
    form: dict[str, Any], data: bytes = DATA, *, name: str = "cat.jpg", **fields: str
) -> requests.Response:
    sent = {**form["fields"], **fields}
    return requests.post(
        form["url"], data=sent, files={"file": (name, data)}, timeout=LIMIT_S, allow_redirects=False
    )


def read(client: Any, key: str) -> bytes | None:
    try:
        return bytes(client.get_object(Bucket=WRITE, Key=key)["Body"].read())
    except ClientError:
        return None


def form_of(client: Any, key: str, *conditions: Any, seconds: int = 600, **fields: Any) -> dict[str, Any]:
    form = client.generate_presigned_post(
        WRITE,
        key,
        Fields=fields,
        Conditions=[*({n: v} for n, v in fields.items()), *conditions],
        ExpiresIn=seconds,
    )
    assert "x-amz-signature" in form["fields"]
    return dict(form)


@pytest.fixture
def signing(s3: S3) -> Any:
    return s3.client(signature_version="s3v4")


@pytest.mark.parametrize("size", [0, 1, 70_000, len(DATA)])
def test_a_form_puts_an_object(signing: Any, size: int) -> None:
    form = form_of(signing, f"forms/{size}/${{filename}}", ["content-length-range", 0, 1 << 20])
    done = send(form, DATA[:size], name="a b.bin")
    assert (done.status_code, done.content) == (204, b"")
    assert read(signing, f"forms/{size}/a b.bin") == DATA[:size]
    assert done.headers["Location"].endswith(f"/{WRITE}/forms/{size}/a%20b.bin")


def test_what_a_form_asks_for_is_answered(signing: Any) -> None:
    done = send(form_of(signing, "forms/created", success_action_status="201"))
    assert done.status_code == 201
    assert f"<Bucket>{WRITE}</Bucket><Key>forms/created</Key>" in done.text
    assert send(form_of(signing, "forms/ok", success_action_status="200")).status_code == 200
    assert send(form_of(signing, "forms/odd", success_action_status="302")).status_code == 204
    done = send(form_of(signing, "forms/there", success_action_redirect="http://example.com/done?x=1"))
    assert done.status_code == 303
    assert done.headers["Location"].startswith(
        f"http://example.com/done?x=1&bucket={WRITE}&key=forms%2Fthere&etag="
    )
    for url in (
        "javascript:alert(1)",
        "//example.com",
        "http://example.com/a\r\nSet-Cookie: a=b",
        "http://a b/",
    ):
        done = send(form_of(signing, "forms/nowhere", success_action_redirect=url))
        assert done.status_code == 204
        assert "Set-Cookie" not in done.headers
        assert "example.com" not in done.headers["Location"]


def test_headers_of_a_form_are_those_of_the_put(signing: Any) -> None:
    for status, fields in (
        (204, {"Content-Type": "image/x", "acl": "private"}),
        (501, {"x-amz-server-side-encryption": "AES256"}),
        (501, {"acl": "public-read"}),
    ):
        given: dict[str, Any] = dict(fields)
        assert send(form_of(signing, "forms/typed", **given)).status_code == status, fields


def test_what_a_policy_does_not_allow_changes_nothing(signing: Any) -> None:
    signing.put_object(Bucket=WRITE, Key="forms/kept", Body=b"old")
    form = form_of(signing, "forms/kept", ["content-length-range", 2, 1000])
    own = form["fields"]
    missing = {name: value for name, value in own.items() if name != "policy"}
    attacks: list[tuple[str, requests.Response]] = [
        ("EntityTooLarge", send(form, DATA)),
        ("EntityTooSmall", send(form, b"x")),
        ("AccessDenied", send(form, b"new", acl="private")),
        ("AccessDenied", send(form, b"new", key="forms/other")),
        ("AccessDenied", send(form | {"url": form["url"].replace(WRITE, "data")}, b"new")),
        ("AccessDenied", send(form | {"fields": missing}, b"new")),
        ("AccessDenied", send(form_of(signing, "forms/kept", seconds=-1), b"new")),
        ("AccessDenied", send({"url": form["url"], "fields": {"key": "forms/kept"}}, b"new")),
        ("SignatureDoesNotMatch", send(form, b"new", policy=own["policy"][:-4] + "fQ==")),
        ("SignatureDoesNotMatch", send(form, b"new", **{"x-amz-signature": "0" * 64})),
        (
            "InvalidAccessKeyId",
            send(form, b"new", **{"x-amz-credential": "BK" + own["x-amz-credential"][2:]}),
        ),
        ("InvalidArgument", send(form_of(signing, "forms/a/${filename}"), b"new", name="..")),
        ("InvalidArgument", send(form_of(signing, "../data/kept"), b"new")),
        ("InvalidArgument", requests.post(form["url"], files={"key": (None, "k")}, timeout=LIMIT_S)),
        ("MalformedPOSTRequest", requests.post(form["url"], data=own, timeout=LIMIT_S)),
    ]
    for code, answer in attacks:
        assert f"<Code>{code}</Code>" in answer.text, (code, answer.text)
    assert read(signing, "forms/kept") == b"old"
    assert read(signing, "forms/other") is None
    assert send(form, b"new").status_code == 204
    assert read(signing, "forms/kept") == b"new"


@pytest.mark.expected_warnings("why=InvalidRequest")
def test_a_url_presigned_by_version_2_says_what_to_set(s3: S3, signing: Any) -> None:
    signing.put_object(Bucket=WRITE, Key="forms/presigned", Body=b"data")
    words = {"Params": {"Bucket": WRITE, "Key": "forms/presigned"}}
    old = requests.get(
        s3.client(signature_version="s3").generate_presigned_url("get_object", **words), timeout=LIMIT_S
    )
    assert old.status_code == 400
    assert "Config(signature_version=&quot;s3v4&quot;)" in old.text
    new = requests.get(signing.generate_presigned_url("get_object", **words), timeout=LIMIT_S)
    assert new.content == b"data"
