"""A client of a gateway shows a credential, also on loopback and from a web page. Secrets lie in files of one user (6,
27, 29, 31)."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base import refusals, reloaded
from headrace.base.errors import PathNotFoundError, UsageError
from headrace.base.refusals import Refusals
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import create_secret, read_secret
from headrace.base.tokens import Tokens, make_token
from headrace.config.secret_options import option_of_command, option_words, resolve_options
from headrace.http.messages import Request, parse_head
from headrace.node.attachments import Attachments
from headrace.rest.gateway import RestGateway as RestGateway
from headrace.s3 import signature
from headrace.s3.credentials import make_credentials, open_credentials
from headrace.s3.gateway import Access
from headrace.s3.gateway import S3Gateway as S3Gateway
from headrace.webhdfs.gateway import WebHdfsGateway as WebHdfsGateway
from headrace.webhdfs.tokens import token_file
from tests.security.no_paths import NoPaths

pytestmark = pytest.mark.expected_warnings("refused interface", "the old content stays in use")


TOKEN, OLDER = "the-newest-token", "the-older-token"
UNSHOWN = [
    "",
    "?user.name=hdfs",
    "?user.name=root&doas=hdfs",
    "?delegation=",
    "?delegation=wrong",
    f"?delegation={TOKEN[:-1]}",
    f"?user.name={TOKEN}",
]


def secret(folder: Path, text: str, *, mode: int = 0o600, name: str = "secret") -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def sent(method: str, target: str, headers: str = "X-A: b") -> Request:
    return parse_head(f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:9\r\n{headers}\r\n\r\n".encode())


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(secret(tmp_path, f"{TOKEN}\n{OLDER}\n"), "webhdfs_token")


@pytest.fixture
def webhdfs(tokens: Tokens) -> WebHdfsGateway:
    return WebHdfsGateway(cast(Any, NoPaths()), tokens, replicas=1, loopback=True)


def passes(gateway: WebHdfsGateway, target: str, headers: str = "X-A: b") -> bool:
    separator = "&" if "?" in target else "?"
    request = sent("GET", f"/webhdfs/v1/a{target}{separator}op=OPEN", headers)
    return gateway.admit(request) is None


@pytest.mark.parametrize("target", UNSHOWN)
def test_webhdfs_believes_no_name(webhdfs: WebHdfsGateway, target: str) -> None:
    separator = "&" if "?" in target else "?"
    request = sent("GET", f"/webhdfs/v1/a{target}{separator}op=OPEN")
    assert webhdfs.cached(request) is None
    assert webhdfs.answer(request, iter(())).status in (401, 403)
    assert not passes(webhdfs, target)


def hadoops(token: str, kind: str = "WEBHDFS delegation", more: bytes = b"") -> str:
    """Encode a token as Hadoop's Token.encodeToUrlString does."""
    fields = (b"owner" * 40, token.encode(), kind.encode(), b"127.0.0.1:9870")
    data = b"".join(
        bytes((143, len(field)) if len(field) > 127 else (len(field),)) + field for field in fields
    )
    return base64.urlsafe_b64encode(data + more).rstrip(b"=").decode()


def test_webhdfs_takes_a_token_in_all_ways_that_clients_have(webhdfs: WebHdfsGateway) -> None:
    for token in (TOKEN, OLDER):
        assert passes(webhdfs, "", f"Authorization: Bearer {token}")
        assert passes(webhdfs, f"?delegation={token}&user.name=me")
        assert passes(webhdfs, f"?Delegation={hadoops(token)}")


@pytest.mark.parametrize(
    "shown", [hadoops("x"), hadoops(TOKEN, "HDFS"), hadoops(TOKEN, more=b"x"), "jg", "jo8B", "_" * 9000]
)
def test_a_token_that_hadoop_would_not_send_is_refused(webhdfs: WebHdfsGateway, shown: str) -> None:
    assert not passes(webhdfs, f"?delegation={shown}")


def test_where_no_token_is_asked_for_one_that_is_shown_is_refused() -> None:
    gateway = WebHdfsGateway(cast(Any, NoPaths()), None, replicas=1, loopback=True)
    assert not passes(gateway, "?delegation=abc")
    assert passes(gateway, "?user.name=me")


def test_a_file_of_tokens_for_hadoop_has_the_token_as_the_password() -> None:
    data = token_file(TOKEN, ["127.0.0.1:9870"])
    service = b"\x0e127.0.0.1:9870"
    password = bytes((len(TOKEN),)) + TOKEN.encode()
    assert data == b"HDTS\0\1" + service + b"\0" + password + b"\x12WEBHDFS delegation" + service + b"\0"


PAGES = ["Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_a_browser_with_a_certificate_is_refused(page: str, tokens: Tokens) -> None:
    """A browser shows its user's certificate to whatever a page asks for."""
    for method, target in (("PUT", "/webhdfs/v1/a?op=MKDIRS"), ("GET", "/webhdfs/v1/a?op=OPEN")):
        request = sent(method, target, page)
        request.certificate = "a user"
        gateway = WebHdfsGateway(cast(Any, NoPaths()), None, replicas=1, loopback=False)
        assert gateway.answer(request, iter(())).status == 403
    rest = RestGateway(cast(Any, type("Handlers", (), {"table": {}})), None, pages=_pages)
    for method, target in (("POST", "/v1/jobs/j-1/cancel"), ("GET", "/v1/status"), ("GET", "/health")):
        request = sent(method, target, page)
        request.certificate = "a user"
        refused = rest.admit(request)
        assert refused is not None
        assert refused.status in (403, 404)


def _pages(request: Request) -> str:
    from headrace.http.sender import sender_refusal

    return sender_refusal(request, (), loopback=False)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o606, 0o660, 0o601])
def test_a_secret_that_others_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path, TOKEN, mode=mode)
    if os.geteuid() == 0:
        os.chown(path, 0, 12345)
    with pytest.raises(UsageError, match=r"other users can read or write it \(mode"):
        read_secret(path, "setting x")


def test_a_secret_of_another_user_or_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError):
            read_secret(str(path), "setting x")
    if os.geteuid() == 0:
        path = Path(secret(tmp_path, TOKEN))
        os.chown(path, 65534, 65534)
        with pytest.raises(UsageError, match="belongs to user 65534"):
            read_secret(str(path), "setting x")


def test_what_a_gateway_makes_is_its_users_alone_and_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "cache/s3-credentials")
    before = os.umask(0)
    try:
        make_credentials(path)
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o600
    first = open_credentials(path).get()
    make_credentials(path)
    assert open_credentials(path).get() == first
    ((access, key),) = first.items()
    assert access.startswith("HEADRACE")
    assert len(key) >= 40
    assert os.listdir(tmp_path / "cache") == ["s3-credentials"]


def test_a_link_that_lies_there_already_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    os.symlink(target, tmp_path / "token")
    assert not create_secret(str(tmp_path / "token"), make_token)
    assert not target.exists()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files are looked at each time."""
    monkeypatch.setattr(reloaded, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(reloaded, "UNSETTLED_S", 60.0)
    yield


@pytest.mark.usefixtures("at_once")
def test_a_changed_file_is_taken_without_a_restart_and_two_tokens_hold(tmp_path: Path) -> None:
    path = secret(tmp_path, f"{OLDER}\n")
    tokens = Tokens(path, "rest_token")
    secret(tmp_path, f"{TOKEN}\n{OLDER}\n")
    assert tokens.accept(TOKEN)
    assert tokens.accept(OLDER)
    assert tokens.newest == TOKEN
    secret(tmp_path, f"{TOKEN}\n")
    assert not tokens.accept(OLDER)
    for text in ("", "a b", "one\ntwo\nthree", "töken"):
        with pytest.raises(UsageError):
            Tokens(secret(tmp_path, text, name="wrong"), "rest_token")


@pytest.mark.usefixtures("at_once")
def test_half_of_a_change_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = secret(tmp_path, "[a]\naws_access_key_id = A\naws_secret_access_key = 1\n")
    keys = open_credentials(path)
    for text, mode in (("", 0o600), ("[a]\naws_access_key_id = B\n", 0o600), ("[a]\n", 0o644)):
        secret(tmp_path, text, mode=mode)
        assert keys.get() == {"A": "1"}
    os.unlink(path)
    assert keys.get() == {"A": "1"}
    secret(tmp_path, "[a]\naws_access_key_id = B\naws_secret_access_key = 2\n")
    assert keys.get() == {"B": "2"}


def test_a_file_is_looked_at_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret(tmp_path, "x")
    file = Reloaded([path], lambda: Path(path).read_text(), name="x")
    monkeypatch.setattr(file, "_check", lambda: pytest.fail("looked"))
    assert file.get() == "x"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("secret_access_key", "marker"),
        ("session_token", "marker"),
        ("account_key", "marker"),
        ("token", "marker"),
        ("password", "marker"),
        ("client_kwargs", "marker"),
        ("endpoint", "https://me:marker@store.example"),
        ("other", "https://me:marker@store.example"),
    ],
)
def test_a_secret_is_no_word_of_a_command(name: str, value: str) -> None:
    with pytest.raises(UsageError) as raised:
        option_of_command(name, value)
    assert "marker" not in str(raised.value)
    assert f"-o {name}=@FILE" in str(raised.value)


def test_a_secret_of_a_command_or_the_configuration_comes_from_a_file(tmp_path: Path) -> None:
    path = secret(tmp_path, "s3cr3t\n")
    assert option_of_command("secret_access_key", f"@{path}") == "s3cr3t"
    assert resolve_options({"secret_access_key": f"@{path}", "region": "x"}) == {
        "secret_access_key": "s3cr3t",
        "region": "x",
    }
    assert option_of_command("access_key_id", "AKIA") == "AKIA"
    Path(path).chmod(0o644)
    with pytest.raises(UsageError, match="other users"):
        option_of_command("secret_access_key", f"@{path}")
    words = option_words({"region": "x", "secret_access_key": "marker"}, str(tmp_path))
    assert "marker" not in " ".join(words)
    assert [option_of_command(*word.split("=", 1)) for word in words[1::2]] == ["x", "marker"]


def test_only_the_configuration_names_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else who may attach an origin by REST would have the node read any file, and send it away."""
    path = secret(tmp_path, "of-the-host")
    given_options: list[dict[str, str]] = []

    def build(url: str, options: dict[str, str], _: object) -> Any:
        given_options.append(options)
        raise UsageError("enough")

    monkeypatch.setattr("headrace.node.attachments.build_origin", build)
    attachments: Any = object.__new__(Attachments)
    with pytest.raises(UsageError):
        asyncio.run(attachments._attach("/x", "s3://b", {"secret_access_key": f"@{path}"}, check=False))
    assert given_options == [{"secret_access_key": f"@{path}"}]


def test_no_thread_waits_for_a_form_of_whoever() -> None:
    """Its fields say who sends it: in chunks they could be long in coming."""
    form = "Content-Type: multipart/form-data; boundary=b\r\nTransfer-Encoding: chunked"
    refused = s3_gateway().admit(sent("POST", "/bucket", form))
    assert refused is not None
    assert refused.status == 411


class EmptyNamespace(NoPaths):
    """A namespace without a file: a read of it misses the cache, and ends with NoSuchBucket."""

    def open_whole_entry(self, path: bytes) -> None: ...

    def find_cached(self, path: bytes) -> None: ...

    def get(self, path: bytes) -> None:
        raise PathNotFoundError(str(path))

    def find(self, path: bytes) -> tuple[bytes, None]:
        return path, None


class CountedKeys:
    """An S3 gateway that counts how often a signature is verified: each time it looks up the secret."""

    def __init__(self) -> None:
        self.verified = 0
        self.keys = {"AK": "the-secret"}
        self.gateway = S3Gateway(cast(Any, EmptyNamespace()), Access(self._secrets, ()))

    def _secrets(self) -> dict[str, str]:
        self.verified += 1
        return self.keys


def rightly_signed(method: str, target: str) -> Request:
    head = signed("AK")  # once: the next one may be of the next second
    request = sent(method, target, head)
    claim = signature.claim_of(request)
    assert claim is not None
    right = signature.signature_of(request, claim, "the-secret", "UNSIGNED-PAYLOAD")
    return sent(method, target, head.replace("Signature=0123", f"Signature={right}"))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_miss_is_verified_once(method: str) -> None:
    counted = CountedKeys()
    request = rightly_signed(method, "/b/k")
    assert counted.gateway.cached(request) is None
    assert request.who == "AK"
    assert counted.gateway.admit(request) is None
    assert counted.gateway.answer(request, iter(())).status == 404
    assert counted.verified == 1


def test_a_put_is_verified_once_and_by_its_head() -> None:
    counted = CountedKeys()
    request = rightly_signed("PUT", "/b/k")
    request.headers["content-length"] = "1"
    assert counted.gateway.admit(request) is None
    assert counted.gateway.answer(request, iter((b"x",))).status == 404
    assert counted.verified == 1


def test_each_request_is_verified_for_itself() -> None:
    """A credential of one request is of no use to the next one of its connection."""
    counted = CountedKeys()
    assert counted.gateway.cached(rightly_signed("GET", "/b/k")) is None
    for request in (sent("GET", "/b/k", signed("AK")), sent("GET", "/b/k")):
        assert counted.gateway.cached(request) is None
        assert request.who == "" and request.call is None
        assert counted.gateway.answer(request, iter(())).status == 403
    counted.keys.clear()
    assert counted.gateway.answer(rightly_signed("GET", "/b/k"), iter(())).status == 403


# ---------------------------------------------------------------- the log


def refusals_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused ")]


def signed(key: str) -> str:
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{key}/{date[:8]}/us-east-1/s3/aws4_request"
    words = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date;x-amz-content-sha256, Signature=0123"
    return f"Authorization: {words}\r\nx-amz-date: {date}\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD"


def s3_gateway() -> S3Gateway:
    return S3Gateway(cast(Any, NoPaths()), Access(lambda: {"AK": "the-secret"}, ()))


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Request], str]] = {
    "no key": (s3_gateway, lambda: sent("PUT", "/b/k"), "who=- why=AccessDenied"),
    "a wrong key": (
        s3_gateway,
        lambda: sent("GET", "/b/k", signed("OTHER")),
        "who=OTHER why=InvalidAccessKeyId",
    ),
    "a wrong signature": (
        s3_gateway,
        lambda: sent("GET", "/b/k", signed("AK")),
        "who=AK why=SignatureDoesNotMatch",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_who_was_refused_is_in_the_log(case: str, caplog: pytest.LogCaptureFixture) -> None:
    make, send, line = CASES[case]
    request = send()
    request.address = "10.1.2.3"
    with caplog.at_level(logging.WARNING):
        assert make().answer(request, iter(())).status == 403
    (said,) = refusals_of(caplog)
    assert f"refused interface=s3 address=10.1.2.3 {line}" in said
    assert "the-secret" not in said


def test_a_refused_token_is_in_the_log_without_it(
    webhdfs: WebHdfsGateway, caplog: pytest.LogCaptureFixture
) -> None:
    request = sent("GET", f"/webhdfs/v1/a?op=OPEN&delegation={TOKEN}x&user.name=mallory")
    request.address = "10.1.2.3"
    with caplog.at_level(logging.WARNING):
        webhdfs.admit(request)
    (said,) = refusals_of(caplog)
    assert "address=10.1.2.3 who=mallory" in said
    assert TOKEN not in said


def test_a_flood_of_refusals_is_no_flood_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = Refusals(logging.getLogger("x"), "s3", clock=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            log.add(f"why {number}" * 100, address="10.0.0.1", who="k" * 100_000)
        assert len(refusals_of(caplog)) == refusals.LINES_A_MINUTE
        now[0] += 60
        for port in range(1000):
            log.add("why", address=f"10.0.0.1:{port}")
    said = refusals_of(caplog)
    assert len(said) == refusals.LINES_A_MINUTE + 1
    assert said[-1].endswith(f"not_logged_before={1000 - refusals.LINES_A_MINUTE}")
    assert max(map(len, said)) < 500
