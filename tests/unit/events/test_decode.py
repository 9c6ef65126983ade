"""Events in the forms in which services send them: as recorded, or as their guides print them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from headrace.events.changes import CHANGES_MAX, EVENTS_BYTES_MAX, EventFormatError, OriginChange
from headrace.events.decode import decode_attributes, decode_message

AWS = {
    "Records": [
        {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": "eu-west-1",
            "eventTime": "2026-11-26T01:02:03.500Z",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "s3SchemaVersion": "1.0",
                "configurationId": "all",
                "bucket": {"name": "training-data", "arn": "arn:aws:s3:::training-data"},
                "object": {
                    "key": "images/a+b%2Bc/%C3%BC.jpg",
                    "size": 1024,
                    "eTag": "d41d8cd98f00b204e9800998ecf8427e",
                    "sequencer": "0055AED6DCD90281E5",
                },
            },
        }
    ]
}
MINIO = {
    "EventName": "s3:ObjectRemoved:Delete",
    "Key": "images/old.jpg",
    "Records": [
        {
            "eventVersion": "2.0",
            "eventSource": "minio:s3",
            "eventTime": "2026-11-26T01:02:03.000Z",
            "eventName": "s3:ObjectRemoved:Delete",
            "s3": {"bucket": {"name": "images"}, "object": {"key": "old.jpg", "sequencer": "1"}},
        }
    ],
}
EVENT_BRIDGE = {
    "version": "0",
    "id": "17793124-05d4-b198-2fde-7ededc63b103",
    "detail-type": "Object Created",
    "source": "aws.s3",
    "time": "2026-11-26T01:02:03Z",
    "detail": {"version": "0", "bucket": {"name": "b"}, "object": {"key": "a+b.jpg", "size": 5}},
}
GRID = [
    {
        "topic": "/subscriptions/x/resourceGroups/y/providers/Microsoft.Storage/storageAccounts/account",
        "subject": "/blobServices/default/containers/data/blobs/train/a b.jpg",
        "eventType": "Microsoft.Storage.BlobDeleted",
        "eventTime": "2026-11-26T01:02:03.1234567Z",
        "id": "831e1650-001e-001b-66ab-eeb76e069631",
        "data": {"api": "DeleteBlob", "blobType": "BlockBlob", "sequencer": "0"},
        "dataVersion": "",
        "metadataVersion": "1",
    }
]
CLOUD_EVENT = {
    "specversion": "1.0",
    "type": "Microsoft.Storage.BlobCreated",
    "source": "/subscriptions/x/storageAccounts/account",
    "subject": "/blobServices/default/containers/data/blobs/new.jpg",
    "time": "2026-11-26T01:02:03Z",
    "data": {"eTag": "0x8"},
}
VALIDATION = [
    {
        "id": "2d1781af-3a4c-4d7c-bd0c-e34b19da4e66",
        "topic": "/subscriptions/x",
        "subject": "",
        "data": {"validationCode": "512d38b6-c7b8-40c8-89fe-f46f9e9622b6"},
        "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
        "eventTime": "2026-11-26T01:02:03Z",
        "metadataVersion": "1",
        "dataVersion": "1",
    }
]
SEAWEED = {
    "key": "/buckets/data/dir/file.bin",
    "event_type": "rename",
    "message": {
        "old_entry": {"name": "file.bin"},
        "new_entry": {"name": "renamed.bin", "chunks": []},
        "new_parent_path": "/buckets/data/other",
    },
}


def decoded(message: object) -> list[OriginChange]:
    reported = decode_message(json.dumps(message).encode())
    assert not reported.refused
    assert not reported.validation_code
    return reported.changes


def places(message: object) -> list[tuple[str, str, bytes, bool]]:
    return [(change.scheme, change.bucket, change.key, change.is_removal) for change in decoded(message)]


def test_s3_of_aws_and_its_encoded_keys() -> None:
    assert places(AWS) == [
        ("s3", "training-data", "images/a b+c/ü.jpg".encode(), False),
        ("s3", "training-data", b"images/a+b%2Bc/%C3%BC.jpg", False),  # as Ceph would have it
    ]
    assert decoded(AWS)[0].sent_at_s == 1795654923.5


def test_a_time_without_a_zone_is_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        text = json.dumps(AWS).replace("03.500Z", "03.500")
        assert decoded(json.loads(text))[0].sent_at_s == 1795654923.5
    finally:
        monkeypatch.undo()
        time.tzset()


def test_s3_of_minio() -> None:
    assert places(MINIO) == [("s3", "images", b"old.jpg", True)]


def test_s3_through_sns_and_event_bridge() -> None:
    through_sns = {"Type": "Notification", "MessageId": "m", "Message": json.dumps(MINIO)}
    assert places(through_sns) == places(MINIO)
    assert places(EVENT_BRIDGE) == [("s3", "b", b"a+b.jpg", False)]
    with pytest.raises(EventFormatError):
        decoded({"Type": "Notification", "Message": json.dumps(through_sns)})


def test_events_that_change_no_object_are_events() -> None:
    assert decoded({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}) == []
    tagged = json.loads(json.dumps(AWS).replace("ObjectCreated:Put", "ObjectTagging:Put"))
    assert decoded(tagged) == []
    assert (
        decode_attributes({"eventType": "OBJECT_METADATA_UPDATE", "bucketId": "b", "objectId": "o"}).changes
        == []
    )


def test_azure_event_grid() -> None:
    assert places(GRID) == [("az", "data", b"train/a b.jpg", True)]
    assert places(CLOUD_EVENT) == [("az", "data", b"new.jpg", False)]
    assert places([CLOUD_EVENT]) == places(CLOUD_EVENT)
    reported = decode_message(json.dumps(VALIDATION).encode())
    assert reported.validation_code == "512d38b6-c7b8-40c8-89fe-f46f9e9622b6"
    assert reported.changes == []


def test_gcs() -> None:
    attributes = {
        "notificationConfig": "projects/_/buckets/b/notificationConfigs/1",
        "eventType": "OBJECT_DELETE",
        "payloadFormat": "JSON_API_V1",
        "bucketId": "b",
        "objectId": "dir/ü",
        "objectGeneration": "1700000000000000",
    }
    (change,) = decode_attributes(attributes, published_at="2026-11-26T01:02:03Z").changes
    assert change == OriginChange("gs", "b", "dir/ü".encode(), is_removal=True, sent_at_s=1795654923.0)


def test_seaweedfs() -> None:
    assert places(SEAWEED) == [
        ("s3", "data", b"dir/file.bin", False),
        ("s3", "data", b"other/renamed.bin", False),
    ]
    assert decoded({"key": "/etc/x", "event_type": "create", "message": {}}) == []


@pytest.mark.parametrize("side", ["old_entry", "new_entry"])
def test_a_directory_of_seaweedfs_is_a_marker(side: str) -> None:
    """A HEAD of its name would find nothing."""
    event = {"key": "/buckets/b/d", "event_type": "create", "message": {side: {"is_directory": True}}}
    assert places(event) == [("s3", "b", b"d/", False)]
    message: Any = SEAWEED["message"]
    renamed = {**SEAWEED, "message": {**message, side: {"name": "n", "is_directory": True}}}
    assert {key[-1:] for _, _, key, _ in places(renamed)} == {b"/"}


def test_a_rename_at_azure_is_of_a_directory() -> None:
    event = {**CLOUD_EVENT, "type": "Microsoft.Storage.BlobRenamed"}
    assert places(event) == [("az", "data", b"new.jpg/", False)]


@pytest.mark.parametrize(
    "key",
    [
        "../../etc/passwd",
        "a/../b",
        "a/./b",
        "a//b",
        "/a",
        "a\0b",
        "n" * 256,
        "a/" * 513 + "b",
        "k" * 2000,
        "",
    ],
)
def test_keys_that_have_no_name_in_the_namespace_are_counted(key: str) -> None:
    message = json.loads(json.dumps(EVENT_BRIDGE))
    message["detail"]["object"]["key"] = key
    reported = decode_message(json.dumps(message).encode())
    assert (reported.changes, reported.refused) == ([], 1)


def test_percent_encoding_leads_nowhere_else() -> None:
    message = json.loads(json.dumps(MINIO).replace("old.jpg", "a/%2e%2e/%2e%2e/b%00"))
    reported = decode_message(json.dumps(message).encode())
    assert [change.key for change in reported.changes] == [b"a/%2e%2e/%2e%2e/b%00"]  # these are plain letters
    assert reported.refused == 1


def _nested(depth: int) -> bytes:
    return b'{"Records":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"5",
        b'"text"',
        b"{}",
        b"\xff\xfe",
        b'{"Records": {}}',
        b'{"Records": [{"eventName": 5}]}',
        b'{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {}, "object": {}}}]}',
        b'[{"eventType": "Microsoft.Storage.BlobCreated", "subject": "/other/x"}]',
        b"[" * 100_000,
        _nested(50_000),
        b'{"Type": "Notification", "Message": "{"}',
        b" " * (EVENTS_BYTES_MAX + 1),
        json.dumps({"source": "aws.s3", "detail-type": "Object Created", "detail": []}).encode(),
    ],
)
def test_all_else_is_refused(body: bytes) -> None:
    with pytest.raises(EventFormatError):
        decode_message(body)


def test_a_message_has_a_limited_number_of_changes() -> None:
    small = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}
    assert len(decoded({"Records": [small] * CHANGES_MAX})) == CHANGES_MAX
    with pytest.raises(EventFormatError, match="more than"):
        decoded({"Records": [small] * (CHANGES_MAX + 1)})


@pytest.mark.parametrize(
    "attributes", [{}, {"eventType": "OBJECT_FINALIZE"}, {"bucketId": "b", "objectId": "o"}]
)
def test_attributes_of_something_else_are_refused(attributes: dict[str, str]) -> None:
    with pytest.raises(EventFormatError):
        decode_attributes(attributes)
