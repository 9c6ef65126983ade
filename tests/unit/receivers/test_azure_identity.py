"""The workload identity of a pod reads a queue: what is sent where, and that no answer does harm."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError, UsageError
from headrace.origin.options import OriginOptions
from headrace.receivers import azure_identity, azure_queue
from headrace.receivers.azure_identity import WorkloadIdentity, WorkloadTokens, workload_identity
from headrace.receivers.azure_queue import IDENTITY_QUEUE_URL, AzureQueue
from tests.event_services import answering

pytestmark = [pytest.mark.timeout(90), pytest.mark.real_time]

ASSERTION = "eyJhbGciOi.about-the_pod.c2lnbmVk"
NAMES = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST")
TENANT = "11111111-2222-3333-4444-555555555555"
CLIENT = "aaaaaaaa-2222-3333-4444-555555555555"
EMPTY = b"<QueueMessagesList/>"


class TokenService:
    """Issues numbered tokens. answers: what it says instead, in turn. valid_s: of its tokens."""

    def __init__(self, valid_s: int = 3600) -> None:
        self.valid_s = valid_s
        self.answers: list[tuple[int, bytes]] = []
        self.forms: list[dict[str, str]] = []
        self.paths: list[str] = []

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.paths.append(path)
        self.forms.append(dict(urllib.parse.parse_qsl(body.decode())))
        if self.answers:
            return self.answers.pop(0)
        token = {
            "access_token": f"token-{len(self.forms)}",
            "expires_in": self.valid_s,
            "token_type": "Bearer",
        }
        return 200, json.dumps(token).encode()


def identity_at(address: str, folder: Path) -> WorkloadIdentity:
    file = folder / "token"
    file.write_text(ASSERTION + "\n")
    return WorkloadIdentity(f"http://{address}/{TENANT}/oauth2/v2.0/token", CLIENT, str(file))


def environment(folder: Path, **others: str) -> dict[str, str]:
    file = folder / "token"
    file.write_text(ASSERTION)
    values = {"AZURE_CLIENT_ID": CLIENT, "AZURE_TENANT_ID": TENANT, "AZURE_FEDERATED_TOKEN_FILE": str(file)}
    return values | others


async def test_a_token_is_exchanged_once_and_replaced_when_it_is_forgotten(tmp_path: Path) -> None:
    service = TokenService()
    with answering(service.answer) as address:
        tokens = WorkloadTokens(identity_at(address, tmp_path))
        assert set(await asyncio.gather(*(tokens.get() for _ in range(10)))) == {"token-1"}
        (tmp_path / "token").write_text("renewed.by.aks")
        tokens.forget()
        assert await tokens.get() == "token-2"
        await tokens.close()
    assert service.paths == [f"/{TENANT}/oauth2/v2.0/token"] * 2
    assert service.forms[0] == {
        "client_id": CLIENT,
        "scope": "https://storage.azure.com/.default",
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": ASSERTION,
    }
    assert service.forms[1]["client_assertion"] == "renewed.by.aks"


@pytest.mark.parametrize(("valid_s", "kept_s"), [(3600, 3300.0), (600, 300.0), (100, 50.0), (1, 0.5)])
async def test_a_token_is_replaced_before_its_end(
    valid_s: int, kept_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(azure_identity, "monotonic_s", lambda: now_s)
    with answering(TokenService(valid_s).answer) as address:
        tokens = WorkloadTokens(identity_at(address, tmp_path))
        assert await tokens.get() == "token-1"
        now_s += kept_s - 0.1
        assert await tokens.get() == "token-1"
        now_s += 0.1
        assert await tokens.get() == "token-2"
        await tokens.close()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, b'{"error": "invalid_client", "error_description": "SECRET"}', OriginDeniedError),
        (401, b'{"error": "invalid_client"}', OriginDeniedError),
        (302, b"https://elsewhere.example/", OriginDeniedError),
        (503, b"", OriginUnavailableError),
        (200, b"", OriginDeniedError),
        (200, b"[]", OriginDeniedError),
        (200, b"[" * 100_000, OriginDeniedError),
        (200, b'{"access_token": "t"}', OriginDeniedError),
        (200, b'{"access_token": "", "expires_in": 3600}', OriginDeniedError),
        (200, b'{"access_token": "a\\r\\nX: b", "expires_in": 3600}', OriginDeniedError),
        (200, b'{"access_token": "a\\n", "expires_in": 3600}', OriginDeniedError),
        (200, b'{"access_token": "t", "expires_in": -1}', OriginDeniedError),
        (200, b'{"access_token": "t", "expires_in": 1e300}', OriginDeniedError),
        (200, b'{"access_token": "%s", "expires_in": 3600}' % (b"x" * 200_000), OriginError),
    ],
)
async def test_an_answer_without_a_token_is_an_error_and_asked_for_again(
    status: int, body: bytes, kind: type[OriginError], tmp_path: Path
) -> None:
    service = TokenService()
    service.answers.append((status, body))
    with answering(service.answer) as address:
        tokens = WorkloadTokens(identity_at(address, tmp_path))
        with pytest.raises(kind) as raised:
            await tokens.get()
        assert "SECRET" not in str(raised.value) and ASSERTION not in str(raised.value)
        assert await tokens.get() == "token-2"
        await tokens.close()


@pytest.mark.parametrize("content", [b"", b"a b", b"\xff\xfe", b"x" * 70_000, b"a\nb"])
async def test_a_file_without_a_token_is_sent_nowhere(content: bytes, tmp_path: Path) -> None:
    service = TokenService()
    with answering(service.answer) as address:
        identity = identity_at(address, tmp_path)
        tokens = WorkloadTokens(identity)
        (tmp_path / "token").write_bytes(content)
        with pytest.raises(OriginDeniedError, match="it holds no token"):
            await tokens.get()
        (tmp_path / "token").unlink()
        with pytest.raises(OriginDeniedError, match="it can't be read"):
            await tokens.get()
        await tokens.close()
    assert not service.forms


def test_the_environment_names_an_identity(tmp_path: Path) -> None:
    identity = workload_identity(environment(tmp_path))
    assert identity is not None
    assert identity.token_url == f"https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token"
    other = workload_identity(environment(tmp_path, AZURE_AUTHORITY_HOST="https://login.microsoftonline.us/"))
    assert other is not None and other.token_url.startswith(f"https://login.microsoftonline.us/{TENANT}/")
    for name in NAMES[:3]:
        assert workload_identity(environment(tmp_path) | {name: ""}) is None
    assert workload_identity({}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AZURE_AUTHORITY_HOST", "http://login.microsoftonline.com/"),
        ("AZURE_AUTHORITY_HOST", "login.microsoftonline.com"),
        ("AZURE_AUTHORITY_HOST", "https://user@login.microsoftonline.com/"),
        ("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com/path"),
        ("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com/?x"),
        ("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com\n"),
        ("AZURE_AUTHORITY_HOST", "https://"),
        ("AZURE_TENANT_ID", "../other"),
        ("AZURE_TENANT_ID", "a/b"),
        ("AZURE_TENANT_ID", "a\n"),
        ("AZURE_CLIENT_ID", "a b"),
    ],
)
def test_an_invalid_environment_is_refused(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=name):
        workload_identity(environment(tmp_path) | {name: value})


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://account.queue.core.windows.net/changes", True),
        ("https://account.queue.core.usgovcloudapi.net/changes", True),
        ("https://account.privatelink.queue.core.windows.net/changes", True),
        ("https://account.z01.queue.storage.azure.net/changes", True),
        ("https://account.queue.core.windows.net:443/changes", True),
        ("http://account.queue.core.windows.net/changes", False),
        ("https://account.queue.core.windows.net.evil.example/changes", False),
        ("https://evil.example/changes", False),
        ("https://evil.example/queue/changes", False),
        ("https://account.queue.core.windows.net:8443/changes", False),
        ("https://accountxqueue.core.windows.net/changes", False),
        ("https://queue.core.windows.net/changes", False),
        ("http://127.0.0.1:1/account/changes", False),
    ],
)
async def test_tokens_of_an_identity_go_to_queues_of_azure_only(
    url: str, is_sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bool(IDENTITY_QUEUE_URL.fullmatch(url)) == is_sent
    if not is_sent:
        set_environment(monkeypatch, environment(tmp_path))
        queue = AzureQueue(url, OriginOptions())
        with pytest.raises(OriginDeniedError, match="no account key was found"):
            await queue.receive()
        await queue.close()


def set_environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name in (*NAMES, "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


async def test_an_identity_reads_a_queue_and_is_asked_again_after_a_denial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = TokenService()
    shown: list[str] = []

    def queue_answer(*_: object) -> tuple[int, bytes]:
        return (401, b"") if shown[-1] == "Bearer token-1" else (200, EMPTY)

    set_environment(monkeypatch, environment(tmp_path))
    monkeypatch.setattr(
        azure_queue, "IDENTITY_QUEUE_URL", re.compile(".*")
    )  # the stand-in is none of Azure's
    with (
        answering(service.answer) as authority,
        answering(queue_answer, lambda headers: shown.append(headers["Authorization"])) as address,
    ):
        identity: Any = identity_at(authority, tmp_path)
        monkeypatch.setattr(azure_queue, "workload_identity", lambda environment: identity)
        queue = AzureQueue(f"http://{address}/account/changes", OriginOptions())
        with pytest.raises(OriginDeniedError, match="status 401"):
            await queue.receive()
        assert await queue.receive() == []
        assert await queue.receive() == []
        await queue.close()
    assert shown == ["Bearer token-1", "Bearer token-2", "Bearer token-2"]


@pytest.mark.parametrize(
    "options",
    [OriginOptions(token="of-the-mount"), OriginOptions(account_name="account", account_key="c2VjcmV0")],
)
async def test_what_the_mount_names_comes_first(
    options: OriginOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    set_environment(monkeypatch, environment(tmp_path))
    monkeypatch.setattr(azure_queue, "IDENTITY_QUEUE_URL", re.compile(".*"))
    with answering(
        lambda *_: (200, EMPTY), lambda headers: shown.append(headers["Authorization"])
    ) as address:
        queue = AzureQueue(f"http://{address}/account/changes", options)
        assert await queue.receive() == []
        await queue.close()
    assert shown[0].startswith(("Bearer of-the-mount", "SharedKey account:"))
