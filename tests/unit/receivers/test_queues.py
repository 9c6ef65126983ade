"""Queues of services: what is sent to them, and that no answer of theirs does harm."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError, UsageError
from headrace.events.changes import EventFormatError, ReportedChanges
from headrace.origin.options import OriginOptions
from headrace.receivers import http
from headrace.receivers.factory import build_queue, check_events
from headrace.receivers.pubsub import PubsubSubscription
from headrace.receivers.sqs import SqsQueue
from tests.event_services import answering, pubsub

pytestmark = [pytest.mark.timeout(60), pytest.mark.real_time]

NAME = "projects/p/subscriptions/changes"
KEYS = OriginOptions(access_key_id="AKID", secret_access_key="very-secret", session_token="of-session")


async def test_pubsub_delivers_until_a_message_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    with pubsub(NAME, ack_deadline_s=0.2) as subscription:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", subscription.address)
        queue = PubsubSubscription(NAME, OriginOptions())
        subscription.notify("b", "dir/ü", "OBJECT_DELETE")
        subscription.publish({"of": "something else"})
        first = await queue.receive()
        again = await queue.receive()
        assert [message.receipt for message in first] == [message.receipt for message in again]
        event, other = first
        assert isinstance(event.content, ReportedChanges)
        (change,) = event.content.changes
        assert (change.bucket, change.key, change.is_removal) == ("b", "dir/ü".encode(), True)
        assert isinstance(other.content, EventFormatError)
        await queue.delete([event])
        assert subscription.unacknowledged == 1
        await queue.close()


async def test_sqs_is_called_by_its_json_protocol_and_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, bytes]] = []

    def answer(_: str, path: str, body: bytes) -> tuple[int, bytes]:
        requests.append((path, body))
        message = {"ReceiptHandle": "r", "Body": '{"Event": "s3:TestEvent"}', "MessageId": "1"}
        return 200, json.dumps(
            {"Messages": [message]} if b"MaxNumber" in body else {"Successful": []}
        ).encode()

    with answering(answer) as address:
        url = f"http://{address}/123456789012/changes"
        queue = SqsQueue(url, KEYS)
        (message,) = await queue.receive()
        assert message.content == ReportedChanges([])
        await queue.delete([message])
        await queue.close()
    received, deleted = (json.loads(body) for _, body in requests)
    assert received == {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20}
    assert deleted == {"QueueUrl": url, "Entries": [{"Id": "0", "ReceiptHandle": "r"}]}
    assert "very-secret" not in str(requests)


async def _refused_by(answer: Callable[[str, str, bytes], tuple[int, bytes]], kind: type[Exception]) -> str:
    with answering(answer) as address:
        queue = SqsQueue(f"http://{address}/1/q", KEYS)
        with pytest.raises(kind) as raised:
            await queue.receive()
        await queue.close()
    assert "very-secret" not in str(raised.value)
    return str(raised.value)


async def test_errors_of_the_service_are_told_without_its_text() -> None:
    error = json.dumps({"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "<b>secret</b>"}).encode()
    text = await _refused_by(lambda *_: (400, error), OriginError)
    assert "status 400, QueueDoesNotExist" in text
    assert "secret" not in text.replace("very-secret", "")
    assert "status 403" in await _refused_by(lambda *_: (403, b"no"), OriginDeniedError)
    assert "status 503" in await _refused_by(lambda *_: (503, b"{}"), OriginUnavailableError)


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[" * 50_000, b'{"Messages": 5}', b"\xff", b'{"Messages": [{}]}']
)
async def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    await _refused_by(lambda *_: (200, body), OriginError)


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 1 << 20)
    assert "more than" in await _refused_by(lambda *_: (200, bytes(2 << 20)), OriginError)


async def test_no_redirect_is_followed() -> None:
    asked = threading.Event()

    def other(*_: object) -> tuple[int, bytes]:
        asked.set()
        return 200, b"{}"

    with answering(other) as elsewhere:
        await _refused_by(lambda *_: (307, f"http://{elsewhere}/".encode()), OriginError)
    assert not asked.is_set()


async def test_nobody_who_answers_is_unavailable() -> None:
    queue = SqsQueue("http://127.0.0.1:1/1/q", KEYS)
    with pytest.raises(OriginUnavailableError):
        await queue.receive()
    await queue.close()


@pytest.mark.parametrize(
    ("url", "events"),
    [
        ("s3://b", "sqs"),
        ("s3://b", "https://user:password@sqs.eu-west-1.amazonaws.com/1/q"),
        ("s3://b", "https://sqs.eu-west-1.amazonaws.com/1/q?secret=1"),
        ("s3://b", "file:///etc/passwd"),
        ("s3://b", "https://sqs.eu-west-1.amazonaws.com/"),
        ("s3://b", "https://a.queue.core.windows.net/changes"),
        ("s3://b", "https://A.Queue.Core.Windows.NET.:443/changes"),
        ("s3://b", "https://pubsub.googleapis.com/v1/projects/p/subscriptions/s"),
        ("gs://b", "changes"),
        ("gs://b", "projects/p/subscriptions/../../x"),
        ("gs://b", "projects/p/subscriptions/s:pull?"),
        ("headrace://h:1/d", "https://sqs.eu-west-1.amazonaws.com/1/q"),
        ("az://b", "https://account.queue.core.windows.net/Q"),
        ("az://b", "https://account.queue.core.windows.net/changes?sv=1&sig=password"),
        ("az://b", "https://account.queue.core.windows.net/"),
        ("az://b", "https://account.queue.core.windows.net/a/../changes"),
        ("az://b", "https://sqs.eu-west-1.amazonaws.com/1/q"),
        ("az://b", "https://sqs.eu-west-1.amazonaws.com/123456789012/changes"),
        ("file:///data", "https://sqs.eu-west-1.amazonaws.com/1/q"),
    ],
)
def test_a_queue_that_is_none_is_refused(url: str, events: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_events(url, {"events": events})
    assert "password" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "events"),
    [
        ("s3://b", "https://sqs.eu-west-1.amazonaws.com/123456789012/changes"),
        ("s3://b", "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/changes"),
        ("s3://b", "http://localstack:4566/000000000000/changes"),
        ("s3://b", "https://sqs.notwindows.net/1/q"),
        ("az://b", "https://account.queue.core.windows.net/changes"),
        ("az://b", "http://127.0.0.1:10001/devstoreaccount1/changes"),
    ],
)
def test_a_queue_of_the_provider_or_of_a_stand_in_is_accepted(url: str, events: str) -> None:
    check_events(url, {"events": events})


def test_a_mount_without_events_has_no_queue() -> None:
    assert isinstance(build_queue("gs://b", {"events": NAME}), PubsubSubscription)


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/q", "eu-west-1"),
        ("https://vpce-0f-1.sqs.us-gov-west-1.vpce.amazonaws.com/1/q", "us-gov-west-1"),
        ("https://eu-central-1.queue.amazonaws.com/1/q", "eu-central-1"),
        ("http://localhost:4566/1/q", "ap-south-1"),
    ],
)
def test_the_region_of_a_queue(url: str, region: str) -> None:
    options = OriginOptions(access_key_id="k", secret_access_key="s", region="ap-south-1")
    assert SqsQueue(url, options)._region == region


async def test_no_password_of_netrc_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the place of the signature, so that the queue could not be read."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login alice password of-netrc\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    shown: list[str] = []
    with answering(
        lambda *_: (200, b"{}"), lambda headers: shown.append(headers["Authorization"])
    ) as address:
        queue = SqsQueue(f"http://{address}/1/q", KEYS)
        assert await queue.receive() == []
        await queue.close()
    assert [words.partition(" ")[0] for words in shown] == ["AWS4-HMAC-SHA256"]


async def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    def answer(_: str, path: str, body: bytes) -> tuple[int, bytes]:
        paths.append(path)
        return 200, b"{}"

    with answering(answer) as address:
        monkeypatch.setenv("http_proxy", f"http://{address}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        queue = SqsQueue("http://sqs.test.invalid/1/q", KEYS)
        assert await queue.receive() == []
        await queue.close()
        assert paths == ["http://sqs.test.invalid/"]
        beside = SqsQueue(f"http://{address}/1/q", KEYS)
        assert await beside.receive() == []
        await beside.close()
        assert paths[1:] == ["/"]


async def test_credentials_are_read_again_after_they_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def answer(*_: object) -> tuple[int, bytes]:
        return (200, b"{}") if "Credential=RIGHT/" in shown[-1] else (403, b"{}")

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "WRONG")
    with answering(answer, lambda headers: shown.append(headers["Authorization"])) as address:
        queue = SqsQueue(f"http://{address}/1/q", OriginOptions())
        with pytest.raises(OriginDeniedError):
            await queue.receive()
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "RIGHT")
        assert await queue.receive() == []
        await queue.close()


class ExpiringCredentials:
    """Stand for those of google-auth. token: valid from the beginning."""

    valid = True

    def __init__(self, token: str) -> None:
        self.token = token


async def test_credentials_of_google_are_found_again_after_they_were_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    credentials = [ExpiringCredentials("wrong"), ExpiringCredentials("right")]

    def answer(*_: object) -> tuple[int, bytes]:
        return (200, b"{}") if shown[-1] == "Bearer right" else (401, b"{}")

    monkeypatch.setattr("google.auth.default", lambda scopes: (credentials.pop(0), "project"))
    with answering(answer, lambda headers: shown.append(headers["Authorization"])) as address:
        monkeypatch.setattr("headrace.receivers.pubsub.SERVICE", f"http://{address}")
        subscription = PubsubSubscription(NAME, OriginOptions())
        with pytest.raises(OriginDeniedError):
            await subscription.receive()
        assert await subscription.receive() == []
        assert await subscription.receive() == []
        await subscription.close()
    assert shown == ["Bearer wrong", "Bearer right", "Bearer right"]
