from __future__ import annotations

import os

import pytest

from headrace.base.errors import UsageError
from headrace.origin.factory import build_origin, parse_origin

FORMS = {
    "s3://bucket": "s3://bucket",
    "s3://bucket/": "s3://bucket",
    "S3://bucket/a/b/": "s3://bucket/a/b",
    "s3a://bucket/a": "s3://bucket/a",
    "s3://bucket/what?/#1/50%": "s3://bucket/what?/#1/50%",
    "gs://bucket/a": "gs://bucket/a",
    "gcs://bucket": "gs://bucket",
    "az://container/a": "az://container/a",
    "azure://container": "az://container",
    "abfs://container/a": "az://container/a",
    "abfss://container/a": "az://container/a",
    "https://host": "https://host",
    "https://host/": "https://host",
    "HTTPS://host:8443/a/b%20c/": "https://host:8443/a/b%20c",
    "http://[::1]:80/a": "http://[::1]/a",
    "https://Host:0443/a": "https://host/a",
    "https://host:80": "https://host:80",
    "file:///": "file:///",
    "file:///srv/data/": "file:///srv/data",
    "file:///srv/../data//x": "file:///data/x",
    "file:///with space/50%": "file:///with space/50%",
    "/srv/data": "file:///srv/data",
    "/srv/data/": "file:///srv/data",
    "relative/folder": f"file://{os.getcwd()}/relative/folder",
    ".": f"file://{os.getcwd()}",
    "~/data": f"file://{os.path.expanduser('~')}/data",
    "memory://name": "memory://name",
    "memory://name/below/": "memory://name/below",
    "synthetic://10/4MiB": "synthetic://10/4MiB",
    "synthetic://10/4k?directories=2": "synthetic://10/4k?directories=2",
    "sftp://user@host/folder/": "sftp://user@host/folder",
    "hdfs://namenode:8020/data": "hdfs://namenode:8020/data",
}


@pytest.mark.parametrize("text", FORMS)
def test_forms(text: str) -> None:
    address = parse_origin(text)
    assert address == FORMS[text]
    assert parse_origin(address) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "s3://", "s3:///key", "gs://", "az://", "s3://user@bucket", "az://container@account.blob/x"),
        *("s3://bucket/a//b", "s3://bucket/a/../b", "s3://bucket/./a", "s3://bu?cket"),
        *("https://", "https:///path", "https://host/a?b=c", "https://host/a#b", "https://me:pw@host/a"),
        *("http://:80", "http://:80:80", "https://host:", "https://host:65536"),
        *("https://::1/a", "https://[x]/a"),
        *("file://host/share", "file://relative", "file://"),
        *("synthetic://", "synthetic://x/1", "synthetic://1", "synthetic://1/1?other=2", "synthetic://1/-1"),
        *(f"headrace://host:{'1' * 5000}/a", f"https://host:{'1' * 5000}/a", f"synthetic://{'1' * 5000}/1"),
        *("synthetic://²/1", "synthetic://1/1?directories=²", f"synthetic://1/{'1' * 5000}"),
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_origin(text)
    with pytest.raises(UsageError):
        build_origin(text, {})


@pytest.mark.parametrize("text", ["s4://bucket", "nosuch://x", "://x", "s 3://b", "juicefs://x"])
def test_an_unknown_scheme_names_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_origin(text)
    for known in ("s3", "gs", "az", "http", "file"):
        assert known in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:marker@host/a",
        "https://host/a?sig=marker",
        "sftp://me:marker@host/a",
        "az://container/a?sv=2022&sig=marker",
        "s3://bucket/a?X-Amz-Credential=x&X-Amz-Signature=marker",
        "s3://me:marker@bucket/a",
        "az://container:marker@account/a",
    ],
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_origin(text)
    assert "marker" not in f"{caught.value} {caught.value!r} {caught.value.args}"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b", {"acces_key_id": "marker"}),
        ("s3://b", {"access_key_id": "marker"}),
        ("s3://b", {"anonymous": "marker"}),
        ("s3://b", {"timeout_s": "marker"}),
        ("s3://b", {"timeout_s": "-1"}),
        ("s3://b", {"timeout_s": "nan"}),
        ("s3://b", {"timeout_s": "inf"}),
        ("s3://b", {"endpoint": "marker not a url"}),
        ("az://c", {}),
        ("az://c", {"account_name": "a", "account_key": "marker is no base64!"}),
        ("gs://b", {"service_account_path": "/nonexistent/marker.json"}),
        ("local:///tmp", {"timeout_s": "marker"}),
    ],
)
def test_options_that_are_off_are_refused_and_not_repeated(
    url: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError) as caught:
        build_origin(url, options)
    assert "marker" not in f"{caught.value} {caught.value!r}"


def test_an_unknown_option_is_told_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown option 'regoin'.*region"):
        build_origin("s3://b", {"regoin": "x"})


def test_nothing_of_an_origin_is_asked_when_it_is_built() -> None:
    for url, options in {
        "s3://b/p": {"endpoint": "http://127.0.0.1:1", "anonymous": "true", "concurrency_max": "4"},
        "gs://b": {"anonymous": "yes", "bytes_limit_per_s": "1e9"},
        "az://c": {"account_name": "a", "anonymous": "1"},
        "https://127.0.0.1:1/p": {"token": "t"},
        "/nonexistent": {"request_limit_per_s": "10"},
        "memory://m": {"timeout_s": "5"},
        "local:///nonexistent": {"concurrency_max": "2"},
    }.items():
        assert build_origin(url, options).url == parse_origin(url)
