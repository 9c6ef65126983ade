"""Credentials come from known places, and go nowhere else."""

from __future__ import annotations

import asyncio
import http.server
import logging
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, UsageError
from headrace.origin.aws_profile import read_profile
from headrace.origin.cloud import s3_options
from headrace.origin.factory import build_origin
from headrace.origin.options import OriginOptions
from headrace.testing.waiting import LIMIT_S

MARKER = "MARKERsecretMARKER"


@pytest.fixture
def profiles(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = default-id\naws_secret_access_key = default-%secret\n"
        "[work]\naws_access_key_id=work-id\naws_secret_access_key=work-secret\naws_session_token=work-token\n"
    )
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-north-1\n[profile work]\nregion=eu-west-1\nendpoint_url=http://work:1\n"
        "[profile roleless]\nregion=eu-west-3\n"
    )
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }


def test_profiles(profiles: dict[str, str]) -> None:
    assert read_profile("", profiles) == {
        "region": "eu-north-1",
        "access_key_id": "default-id",
        "secret_access_key": "default-%secret",
    }
    work = {
        "region": "eu-west-1",
        "endpoint": "http://work:1",
        "access_key_id": "work-id",
        "secret_access_key": "work-secret",
        "session_token": "work-token",
    }
    assert read_profile("work", profiles) == work
    assert read_profile("", {**profiles, "AWS_PROFILE": "work"}) == work
    assert read_profile("roleless", profiles) == {"region": "eu-west-3"}


def test_profiles_that_are_not_there(tmp_path: Path) -> None:
    nowhere = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(tmp_path),
    }
    assert read_profile("", nowhere) == {}
    with pytest.raises(UsageError, match="work"):
        read_profile("work", nowhere)


@pytest.mark.parametrize(
    "text", [MARKER.encode(), b"[default\n" + MARKER.encode(), b"\xff\xfe" + MARKER.encode()]
)
def test_a_broken_profile_file_is_not_quoted(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "credentials").write_bytes(text)
    with pytest.raises(UsageError) as caught:
        read_profile(
            "",
            {
                "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
                "AWS_CONFIG_FILE": str(tmp_path / "none"),
            },
        )
    assert MARKER not in "".join(traceback.format_exception(caught.value))


def test_options_then_environment_then_profile(profiles: dict[str, str]) -> None:
    given = OriginOptions(access_key_id="own-id", secret_access_key="own-secret")
    assert s3_options(given, profiles) == given
    options = s3_options(OriginOptions(), {**profiles, "AWS_ACCESS_KEY_ID": "env-id"})
    assert not options.access_key_id  # obstore reads the environment itself
    options = s3_options(OriginOptions(), profiles)
    assert (options.access_key_id, options.region) == ("default-id", "eu-north-1")
    options = s3_options(OriginOptions(profile="work"), {**profiles, "AWS_ACCESS_KEY_ID": "env-id"})
    assert (options.access_key_id, options.session_token, options.endpoint) == (
        "work-id",
        "work-token",
        "http://work:1",
    )
    options = s3_options(OriginOptions(profile="work", region="mine"), profiles)
    assert options.region == "mine"
    options = s3_options(
        OriginOptions(profile="work"), {**profiles, "AWS_REGION": "env", "AWS_ENDPOINT_URL": "e"}
    )
    assert (options.region, options.endpoint) == ("", "")
    assert s3_options(OriginOptions(anonymous=True), profiles).access_key_id == ""


def test_a_key_is_not_mixed_from_two_places(profiles: dict[str, str]) -> None:
    given = OriginOptions(profile="work", access_key_id="own-id", secret_access_key="own-secret")
    options = s3_options(given, profiles)
    assert (options.access_key_id, options.secret_access_key, options.session_token) == (
        "own-id",
        "own-secret",
        "",
    )
    assert options.region == "eu-west-1"


class _Echo(http.server.BaseHTTPRequestHandler):
    """Refuses everything, with what it was sent in the answer: the worst that a server can do for our messages."""

    protocol_version = "HTTP/1.1"
    status = 403
    requests: list[Mapping[str, str]]

    def log_message(self, format: str, *args: object) -> None:
        return None

    def _answer(self) -> None:
        self.requests.append(dict(self.headers.items()))
        body = f"<Error><Code>No</Code><Message>refused</Message>{self.path} {self.headers}</Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = _answer


@pytest.fixture
def echo() -> Iterator[tuple[str, type[_Echo]]]:
    class Handler(_Echo):
        requests: list[Mapping[str, str]] = []  # noqa: RUF012 - one class a test

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Handler
        server.shutdown()
        thread.join()


def provoke(url: str, options: dict[str, str], patience_s: float = 0.15) -> tuple[list[str], list[type]]:
    """All that a user could get to see of an origin that refuses every call, and the errors' classes."""
    texts: list[str] = []
    kinds: list[type] = []

    def tell(error: HeadraceError) -> None:
        kinds.append(type(error))
        texts.extend((str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))))

    async def body() -> None:
        origin = build_origin(url, options)
        inner: object = origin
        while inner is not None:
            texts.extend((repr(inner), str(inner), repr(getattr(inner, "_stores", ""))))
            inner = getattr(inner, "_inner", None)
        texts.append(origin.url)
        try:
            await origin.head("k", deadline=Deadline.after(LIMIT_S, patience_s=patience_s))
        except HeadraceError as error:
            tell(error)
        try:
            async for _ in origin.list_directory("", deadline=Deadline.after(LIMIT_S, patience_s=patience_s)):
                pass
        except HeadraceError as error:
            tell(error)
        await origin.close()

    try:
        asyncio.run(body())
    except UsageError as error:
        tell(error)
    return texts, kinds


@pytest.mark.parametrize("status", [301, 400, 403, 404, 416, 503])
@pytest.mark.parametrize("kind", ["s3", "s3-environment", "gs", "az", "http"])
def test_secrets_are_never_shown(
    echo: tuple[str, type[_Echo]],
    kind: str,
    status: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint, handler = echo
    handler.status = status
    caplog.set_level(logging.DEBUG)
    base64 = "TUFSS0VSc2VjcmV0TUFSS0VS"  # MARKER
    options = {
        "s3": {
            "endpoint": endpoint,
            "access_key_id": "id",
            "secret_access_key": MARKER,
            "session_token": f"session-{MARKER}",
        },
        "s3-environment": {"endpoint": endpoint},
        "gs": {"endpoint": endpoint, "token": MARKER},
        "az": {"endpoint": f"{endpoint}/account", "account_name": "account", "account_key": base64},
        "http": {"token": MARKER},
    }[kind]
    if kind == "s3-environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", MARKER)
        monkeypatch.setenv("AWS_SESSION_TOKEN", f"session-{MARKER}")
    texts, kinds = provoke(f"{kind[:2]}://bucket/p" if kind != "http" else f"{endpoint}/p", options)
    assert len(kinds) >= 1, "nothing failed"
    assert handler.requests, "nothing was asked"
    captured = capfd.readouterr()
    everything = "\n".join([*texts, caplog.text, captured.out, captured.err])
    assert MARKER not in everything
    assert base64 not in everything
    assert "Signature=" not in everything and "SharedKey" not in everything


def test_a_key_of_the_config_is_not_joined_by_secrets_of_the_environment(
    echo: tuple[str, type[_Echo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, handler = echo
    monkeypatch.setenv("AWS_SESSION_TOKEN", MARKER)
    provoke("s3://b", {"endpoint": endpoint, "access_key_id": "own", "secret_access_key": "own"})
    assert handler.requests
    assert all(MARKER not in str(headers) for headers in handler.requests)


def test_nobody_is_told_a_secret_when_asked_anonymously(
    echo: tuple[str, type[_Echo]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, handler = echo
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", MARKER)
    monkeypatch.setenv("AWS_SESSION_TOKEN", MARKER)
    provoke("s3://b", {"endpoint": endpoint, "anonymous": "true"})
    assert handler.requests
    assert all("authorization" not in {name.lower() for name in headers} for headers in handler.requests)
    assert all(MARKER not in str(headers) for headers in handler.requests)


def test_options_do_not_show_themselves() -> None:
    options = OriginOptions(secret_access_key=MARKER, account_key=MARKER, token=MARKER, session_token=MARKER)
    assert MARKER not in repr(options) and MARKER not in str(options)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("local:///tmp", {"auto_mkdir": MARKER, "nonsense": MARKER}),
        ("ftp://127.0.0.1:1/x", {"username": "u", "password": MARKER}),
        ("github://o:r@main/x", {"token": MARKER, "nonsense": MARKER}),
        ("webhdfs://127.0.0.1:1/x", {"user": "u", "password": MARKER}),
        ("zip:///nonexistent.zip", {"password": MARKER}),
        ("reference://x", {"fo": MARKER}),
    ],
)
def test_a_driver_of_fsspec_does_not_show_them_either(url: str, options: dict[str, str]) -> None:
    texts, kinds = provoke(url, options, 0.5)
    assert MARKER not in "\n".join(texts)
    assert all(issubclass(kind, HeadraceError) for kind in kinds)
