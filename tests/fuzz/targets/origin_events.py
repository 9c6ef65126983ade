"""What origins, and whoever writes at them, report about changes (events/)."""

from __future__ import annotations

import json

import msgspec

from headrace.base.errors import OriginError
from headrace.base.namespace_path import check_path
from headrace.events.changes import CHANGES_MAX, KEY_BYTES_MAX, EventFormatError, ReportedChanges
from headrace.events.decode import decode_attributes, decode_message
from headrace.receivers.azure_queue import decode_messages
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
    for message in decode_messages(data, "a queue"):
        assert message.receipt.isascii() and len(message.receipt) < 1100
        if isinstance(message.content, ReportedChanges):
            _check(message.content)


_AZURE = (
    b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage><MessageId>1-a</MessageId>'
    b"<PopReceipt>r+/=</PopReceipt><MessageText>W10=</MessageText></QueueMessage></QueueMessagesList>"
)

FUZZERS = [
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
