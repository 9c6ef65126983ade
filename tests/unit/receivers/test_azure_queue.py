"""A queue of Azure Storage: what is sent to it, and that no answer of it does harm. Azurite checks the signatures."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator

import pytest

from headrace.base.errors import MissingExtraError, OriginDeniedError, OriginError
from headrace.events.changes import EventFormatError, ReportedChanges
from headrace.origin.options import OriginOptions
from headrace.receivers import azure_queue
from headrace.receivers.azure_queue import AzureQueue
from headrace.receivers.factory import build_queue
from headrace.receivers.source import QueuedMessage
from headrace.testing.servers import ServerMissing
from tests.emulators import AzuriteQueue, azurite_queue
from tests.event_services import answering

pytestmark = [pytest.mark.timeout(90), pytest.mark.real_time]

EVENT = {
    "specversion": "1.0",
    "type": "Microsoft.Storage.BlobDeleted",
    "subject": "/blobServices/default/containers/data/blobs/a b.jpg",
}
KEY = base64.b64encode(b"very-secret").decode()
KEYS = OriginOptions(account_name="account", account_key=KEY)
QUEUE = "https://account.queue.core.windows.net/changes"


@pytest.fixture(scope="module")
def azurite() -> Iterator[AzuriteQueue]:
    try:
        with azurite_queue() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


async def test_a_message_is_delivered_until_it_is_deleted(
    azurite: AzuriteQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(azure_queue, "VISIBILITY_S", 1)
    url = azurite.make_queue("changes")
    queue = build_queue("az://data", {"events": url, **azurite.options})
    assert await queue.receive() == []
    azurite.put("changes", base64.b64encode(json.dumps([EVENT]).encode()).decode())
    azurite.put("changes", json.dumps(EVENT))
    azurite.put("changes", "of something else")
    messages = list(await queue.receive())
    assert len(messages) == 3
    for message in messages[:2]:
        assert isinstance(message.content, ReportedChanges)
        (change,) = message.content.changes
        assert (change.bucket, change.key, change.is_removal) == ("data", b"a b.jpg", True)
    assert isinstance(messages[2].content, EventFormatError)
    await queue.delete(messages[:2])
    left: list[str] = []
    async with asyncio.timeout(30):
        while not left:
            left += [message.receipt.partition(" ")[0] for message in await queue.receive()]
    assert left == [messages[2].receipt.partition(" ")[0]]
    await queue.close()


async def test_a_wrong_key_and_a_missing_queue_are_told(azurite: AzuriteQueue) -> None:
    wrong = {**azurite.options, "account_key": KEY}
    url = azurite.make_queue("other")
    for options, name, kind in (
        (wrong, url, OriginDeniedError),
        (azurite.options, f"{url}-none", OriginError),
    ):
        queue = build_queue("az://data", {"events": name, **options})
        with pytest.raises(kind) as raised:
            await queue.receive()
        assert KEY not in str(raised.value)
        await queue.close()


@pytest.mark.parametrize(
    "options",
    [
        OriginOptions(),
        OriginOptions(account_name="a"),
        OriginOptions(account_name="a", account_key="no base64!"),
    ],
)
async def test_without_a_key_nothing_is_sent(options: OriginOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    queue = AzureQueue(QUEUE, options)
    with pytest.raises(OriginDeniedError, match="no account key was found"):
        await queue.receive()
    await queue.close()


async def test_a_token_is_sent_instead_of_a_signature() -> None:
    shown: list[str] = []
    with answering(
        lambda *_: (200, b"<QueueMessagesList/>"), lambda headers: shown.append(headers["Authorization"])
    ) as address:
        queue = AzureQueue(f"http://{address}/account/changes", OriginOptions(token="of-entra"))
        assert await queue.receive() == []
        await queue.close()
    assert shown == ["Bearer of-entra"]


async def test_a_message_that_was_delivered_again_leaves_the_others_to_be_deleted() -> None:
    """Its receipt is not valid any more. All others would be handled again, and again."""
    deleted: list[str] = []

    def answer(_: str, path: str, __: bytes) -> tuple[int, bytes]:
        deleted.append(path.partition("?")[0].rpartition("/")[2])
        return (404 if deleted[-1] == "b" else 204), b""

    with answering(answer) as address:
        queue = AzureQueue(f"http://{address}/account/changes", OriginOptions(token="of-entra"))
        with pytest.raises(OriginError):
            await queue.delete([QueuedMessage(f"{id} receipt", ReportedChanges([])) for id in "abc"])
        await queue.close()
    assert deleted == ["a", "b", "c"]


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><QueueMessagesList>&b;</QueueMessagesList>'
MESSAGE = (
    "<QueueMessagesList><QueueMessage><MessageId>%s</MessageId><PopReceipt>%s</PopReceipt></QueueMessage>"
    "</QueueMessagesList>"
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<a",
        b"\xff",
        BOMB,
        (MESSAGE % ("../../other", "r")).encode(),
        (MESSAGE % ("id", "")).encode(),
        (MESSAGE % ("id", "r" * 2000)).encode(),
    ],
)
async def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    with answering(lambda *_: (200, body)) as address:
        queue = AzureQueue(f"http://{address}/account/changes", KEYS)
        with pytest.raises(OriginError):
            await queue.receive()
        await queue.close()


async def test_no_more_messages_are_taken_than_asked_for() -> None:
    row = "<QueueMessage><MessageId>i</MessageId><PopReceipt>r</PopReceipt><MessageText>%s</MessageText></QueueMessage>"
    body = f"<QueueMessagesList>{''.join(row % number for number in range(500))}</QueueMessagesList>".encode()
    messages = azure_queue.decode_messages(body, "q")
    assert len(messages) == azure_queue.MESSAGES_A_REQUEST
    assert all(isinstance(message.content, EventFormatError) for message in messages)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_document_type_is_refused_in_any_encoding(encoding: str) -> None:
    """Its entities would take a gigabyte."""
    message = MESSAGE % ("1", "&b;")
    body = f'<?xml version="1.0" encoding="{encoding}"?>{BOMB.decode().partition("<Q")[0]}{message}'
    with pytest.raises(OriginError, match="none of a storage queue"):
        azure_queue.decode_messages(body.encode(encoding), "q")


def test_an_answer_of_the_service_begins_with_a_mark_of_its_encoding() -> None:
    body = '\ufeff<?xml version="1.0" encoding="utf-8"?>' + MESSAGE % ("1", "r")
    (message,) = azure_queue.decode_messages(body.encode(), "q")
    assert message.receipt == "1 r"


async def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    queue = AzureQueue(QUEUE, KEYS)
    with pytest.raises(
        MissingExtraError, match=r"aiohttp is not installed \(pip install 'headrace\[events\]'\)"
    ):
        await queue.receive()
    await queue.close()
