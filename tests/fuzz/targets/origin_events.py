"""Origins, and those who write at them, report changes (events/)."""

from __future__ import annotations

import json

import msgspec

from headrace.base.errors import OriginError
from headrace.base.namespace_path import check_path
from headrace.events.changes import CHANGES_MAX, KEY_BYTES_MAX, EventFormatError, ReportedChanges
from headrace.events.decode import decode_attributes, decode_message
from headrace.receivers import azure_queue, pubsub, sqs
from headrace.receivers.http import code_of
from headrace.receivers.source import ID_CHARACTERS_MAX, QueuedMessage
from headrace.wire.event_messages import ReportChanges
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text

_RECORD = (
    b'{"Records": [{"eventName": "s3:ObjectCreated:Put", "eventTime": "2026-11-26T01:02:03Z", '
    b'"s3": {"bucket": {"name": "b"}, "object": {"key": "a/b%2Fc+d"}}}]}'
)
_GRID = (
    b'[{"eventType": "Microsoft.Storage.BlobCreated", "subject": "/blobServices/default/containers/c/blobs/k", '
    b'"eventTime": "2026-11-26T01:02:03.1234567Z", "data": {"validationCode": "x"}}]'
)
_SEAWEED = (
    b'{"key": "/buckets/b/k", "event_type": "rename", "message": {"new_parent_path": "/buckets/b/d", '
    b'"new_entry": {"name": "n"}}}'
)
_BRIDGE = (
    b'{"source": "aws.s3", "detail-type": "Object Deleted", "time": "2026-11-26T01:02:03Z", '
    b'"detail": {"bucket": {"name": "b"}, "object": {"key": "k"}}}'
)


def _event(data: bytes) -> None:
    _check_attributes(data)
    _check(decode_message(data))


def _check_attributes(data: bytes) -> None:
    """Take the input as attributes of Pub/Sub, too, if it is a map of texts."""
    try:
        attributes = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(attributes, dict) and all(isinstance(value, str) for value in attributes.values()):
        try:
            _check(decode_attributes(attributes, published_at=attributes.get("publishTime", "")))
        except EventFormatError:
            pass


def _check(reported: ReportedChanges) -> None:
    assert len(reported.changes) + reported.refused <= CHANGES_MAX
    assert len(reported.validation_code) <= 512
    for change in reported.changes:
        assert change.bucket
        assert 0 < len(change.key) <= KEY_BYTES_MAX
        check_path(b"/" + change.key.rstrip(b"/"))
        assert change.sent_at_s >= 0
    sent = ReportChanges(reported.changes, reported.refused)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ReportChanges) == sent


def _azure_answer(data: bytes) -> None:
    for message in azure_queue.decode_messages(data, "a queue"):
        assert message.receipt.isascii() and len(message.receipt) < 1100
        _check_message(message)


def _sqs_answer(data: bytes) -> None:
    messages = sqs.decode_messages(data, "a queue")
    assert len(messages) <= sqs.MESSAGES_A_REQUEST
    for message in messages:
        _check_message(message)


def _pubsub_answer(data: bytes) -> None:
    messages = pubsub.decode_messages(data, "a subscription")
    assert len(messages) <= pubsub.MESSAGES_A_REQUEST
    for message in messages:
        _check_message(message)


def _check_message(message: QueuedMessage) -> None:
    assert len(message.id) <= ID_CHARACTERS_MAX
    if isinstance(message.content, ReportedChanges):
        _check(message.content)


def _error_answer(data: bytes) -> None:
    """Decode an error, whose code becomes a part of a line."""
    code = code_of(data)
    assert len(code) <= 66 and code.isascii() and code.isprintable()


_AZURE = (
    b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage><MessageId>1-a</MessageId>'
    b"<PopReceipt>r+/=</PopReceipt><MessageText>W10=</MessageText></QueueMessage></QueueMessagesList>"
)

_SQS = b'{"Messages": [{"ReceiptHandle": "r", "MessageId": "1", "Body": "{\\"Records\\": []}"}]}'
_PUBSUB = (
    b'{"receivedMessages": [{"ackId": "r", "message": {"attributes": {"eventType": "OBJECT_FINALIZE", '
    b'"bucketId": "b", "objectId": "k"}, "publishTime": "2026-11-26T01:02:03Z", "messageId": "1"}}]}'
)
_JSON_WORDS = [
    b"null",
    b"1e999",
    b"[[",
    b"{}",
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"..",
    b"%00",
    b"Messages",
    b"message",
]

FUZZERS = [
    Fuzzer(
        "sqs-answers",
        "answers of queues of SQS (receivers/sqs.py)",
        _sqs_answer,
        (OriginError,),
        [_SQS, b"{}"],
        words=_JSON_WORDS,
        mutate=mutate_text,
    ),
    Fuzzer(
        "pubsub-answers",
        "answers of subscriptions of Pub/Sub (receivers/pubsub.py)",
        _pubsub_answer,
        (OriginError,),
        [_PUBSUB, b"{}"],
        words=_JSON_WORDS,
        mutate=mutate_text,
    ),
    Fuzzer(
        "queue-errors",
        "errors of the services of queues (receivers/http.py)",
        _error_answer,
        (),
        [b'{"__type": "com.amazonaws.sqs#QueueDoesNotExist"}', b'{"error": {"status": "NOT_FOUND"}}'],
        words=_JSON_WORDS,
        mutate=mutate_text,
    ),
    Fuzzer(
        "azure-queue-answers",
        "answers of queues of Azure Storage (receivers/azure_queue.py)",
        _azure_answer,
        (OriginError,),
        [_AZURE, _AZURE.decode("utf-8-sig").encode("utf-16")],
        words=[b"<!DOCTYPE", b"<!ENTITY", b"&a;", b"&#0;", b"utf-16", b"<![CDATA[", b"xmlns=", b"[{", b"e30="],
        mutate=mutate_text,
    ),
    Fuzzer(
        "origin-events",
        "events of origins: S3, Event Grid, Pub/Sub, SeaweedFS (events/)",
        _event,
        (EventFormatError,),
        [
            _RECORD,
            _GRID,
            _SEAWEED,
            _BRIDGE,
            b'{"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "k"}',
            b'{"Type": "Notification", "Message": "{}"}',
        ],
        words=[
            b"Records", b"eventName", b"eventTime", b"ObjectRemoved:", b"key", b"..", b"%2e", b"%00", b"%ff", b"+",
            b"//",
            b"\\u0000", b"\\ud800", b"Event", b"Message", b"detail", b"specversion", b"subject", b"/blobs/", b"null",
            b"1e999",
            b"[[", b"{}", b'"', b":", b"s3:TestEvent", b"validationCode", b"9999-12-31T23:59:59Z", b"-0001",
        ],
        mutate=mutate_text,
    ),
]  # fmt: skip
