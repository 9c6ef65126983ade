"""Decode the messages by which origins report changes.

Known forms:

- S3 event notifications of AWS, MinIO and Ceph, also through SNS, and those of EventBridge;
- Azure Event Grid, in its own schema and as CloudEvents;
- GCS notifications, which are attributes of a Pub/Sub message;
- the notifications of a SeaweedFS filer.

Formats: the developer guides of each service. Everything else is refused, and each part is bounded.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.base.decoding import convert, decode_json
from headrace.events.changes import (
    CHANGES_MAX,
    EVENTS_BYTES_MAX,
    EventFormatError,
    OriginChange,
    ReportedChanges,
    Scheme,
)

VALIDATION = "Microsoft.EventGrid.SubscriptionValidationEvent"
VALIDATION_CODE_MAX = 512
SEAWEED_BUCKETS = "/buckets/"
"""The directory of a SeaweedFS filer that has the buckets of S3."""
_BLOBS = "/blobServices/default/containers/"
_AZURE_RENAMED = "Microsoft.Storage.BlobRenamed"
_AZURE_KINDS = {
    "Microsoft.Storage.BlobCreated": False,
    _AZURE_RENAMED: False,
    "Microsoft.Storage.BlobDeleted": True,
}
_GCS_KINDS = {"OBJECT_FINALIZE": False, "OBJECT_DELETE": True, "OBJECT_ARCHIVE": True}
_EVENT_BRIDGE_KINDS = {"Object Created": False, "Object Deleted": True}
_Change = tuple[Scheme, str, str, bool, float]


class S3Object(msgspec.Struct, frozen=True):
    """An object in an S3 event. key: percent-encoded by AWS and MinIO."""

    key: str


class S3Bucket(msgspec.Struct, frozen=True):
    name: str


class S3Entity(msgspec.Struct, frozen=True):
    bucket: S3Bucket
    object: S3Object


class S3Record(msgspec.Struct, frozen=True):
    """A record of an S3 event notification."""

    event_name: str = msgspec.field(name="eventName")
    s3: S3Entity
    event_time: str = msgspec.field(name="eventTime", default="")


class S3Detail(msgspec.Struct, frozen=True):
    """The detail of an event of S3 by EventBridge. The key is not encoded there."""

    bucket: S3Bucket
    object: S3Object


class GridEvent(msgspec.Struct, frozen=True):
    """An event of Azure Event Grid: `eventType` in its own schema, `type` in CloudEvents."""

    event_type: str = msgspec.field(name="eventType", default="")
    type: str = ""
    subject: str = ""
    event_time: str = msgspec.field(name="eventTime", default="")
    time: str = ""
    data: dict[str, Any] = {}


class SeaweedEvent(msgspec.Struct, frozen=True):
    """A notification of a SeaweedFS filer. key: the path in the filer."""

    key: str
    event_type: str
    notification: dict[str, Any] = msgspec.field(name="message", default_factory=dict)


def decode_message(body: bytes) -> ReportedChanges:
    """Decode a message of any known form. Raise EventFormatError."""
    if len(body) > EVENTS_BYTES_MAX:
        raise EventFormatError(f"it has {len(body)} bytes: {EVENTS_BYTES_MAX} are allowed")
    try:
        return _decoded(decode_json(body, object), depth=0)
    except msgspec.DecodeError:
        raise EventFormatError("it is no JSON of a known form") from None


def decode_attributes(attributes: Mapping[str, str], *, published_at: str = "") -> ReportedChanges:
    """Decode the attributes of a Pub/Sub message of GCS. Raise EventFormatError."""
    kind = attributes.get("eventType")
    bucket, key = attributes.get("bucketId"), attributes.get("objectId")
    if kind is None or not bucket or not key:
        raise EventFormatError("it has not the attributes of a GCS notification")
    if kind not in _GCS_KINDS:  # such as OBJECT_METADATA_UPDATE, which changes no bytes
        return ReportedChanges([])
    return _reported([("gs", bucket, key, _GCS_KINDS[kind], _seconds(published_at))])


def _decoded(value: object, *, depth: int) -> ReportedChanges:
    if isinstance(value, list):
        return _grid(convert(value, list[GridEvent]))
    if not isinstance(value, dict):
        raise EventFormatError("it is neither a JSON object nor an array")
    if "Records" in value:
        return _reported(_s3(convert(value["Records"], list[S3Record])))
    if value.get("Event") == "s3:TestEvent":  # sent when the notification is configured
        return ReportedChanges([])
    if value.get("source") == "aws.s3" and "detail-type" in value:
        return _reported(_event_bridge(value))
    if value.get("Type") == "Notification" and isinstance(value.get("Message"), str) and depth == 0:
        return _decoded(decode_json(value["Message"].encode("utf-8", "replace"), object), depth=1)
    if "event_type" in value and "key" in value:
        return _reported(_seaweed(convert(value, SeaweedEvent)))
    if "eventType" in value or "specversion" in value:
        return _grid([convert(value, GridEvent)])
    raise EventFormatError("it is no event of a known form")


def _s3(records: list[S3Record]) -> Iterator[_Change]:
    """Yield changes. Ceph does not encode keys, AWS and MinIO do: where the two readings differ, both are meant."""
    for record in records:
        name = record.event_name.removeprefix("s3:")
        is_removal = name.startswith(("ObjectRemoved:", "LifecycleExpiration:", "ObjectLifecycle:Expiration"))
        if not is_removal and not name.startswith(("ObjectCreated:", "ObjectRestore:", "ObjectSynced:")):
            continue
        sent_at_s = _seconds(record.event_time)
        key = record.s3.object.key
        decoded = urllib.parse.unquote_plus(key, errors="surrogateescape")
        for reading in dict.fromkeys((decoded, key)):
            yield "s3", record.s3.bucket.name, reading, is_removal, sent_at_s


def _event_bridge(value: dict[str, Any]) -> Iterator[_Change]:
    kind = value["detail-type"]
    if isinstance(kind, str) and kind in _EVENT_BRIDGE_KINDS:
        detail = convert(value.get("detail"), S3Detail)
        time_text = value.get("time")
        sent_at_s = _seconds(time_text if isinstance(time_text, str) else "")
        yield "s3", detail.bucket.name, detail.object.key, _EVENT_BRIDGE_KINDS[kind], sent_at_s


def _grid(events: list[GridEvent]) -> ReportedChanges:
    for event in events:
        code = event.data.get("validationCode")
        if event.event_type == VALIDATION and isinstance(code, str) and len(code) <= VALIDATION_CODE_MAX:
            return ReportedChanges([], validation_code=code)
    return _reported(_blobs(events))


def _blobs(events: list[GridEvent]) -> Iterator[_Change]:
    for event in events:
        kind = event.event_type or event.type
        if kind not in _AZURE_KINDS:
            continue
        container, separator, key = event.subject.removeprefix(_BLOBS).partition("/blobs/")
        if not event.subject.startswith(_BLOBS) or not separator:
            raise EventFormatError("the subject of an event is no blob")
        if kind == _AZURE_RENAMED:  # it names one of two places: the whole directory may have changed
            key = f"{key}/"
        yield "az", container, key, _AZURE_KINDS[kind], _seconds(event.event_time or event.time)


def _seaweed(event: SeaweedEvent) -> Iterator[_Change]:
    """Yield the changes of the filer's entry; a rename changes two places. A directory gets the slash of a marker."""
    now_s = time.time()
    is_removal = event.event_type == "delete"
    target = event.notification.get("new_parent_path")
    old, new = (event.notification.get(name) for name in ("old_entry", "new_entry"))
    is_directory = any(isinstance(entry, dict) and entry.get("is_directory") is True for entry in (old, new))
    slash = "/" if is_directory else ""
    keys = {event.key + slash: is_removal}
    name = new.get("name") if isinstance(new, dict) else None
    if isinstance(target, str) and isinstance(name, str) and target:
        keys.setdefault(f"{target.rstrip('/')}/{name}{slash}", False)
    for path, removed in keys.items():
        if path.startswith(SEAWEED_BUCKETS):
            bucket, _, key = path.removeprefix(SEAWEED_BUCKETS).partition("/")
            if key:
                yield "s3", bucket, key, removed, now_s


def _reported(changes: Iterable[_Change]) -> ReportedChanges:
    """Return the changes whose keys have names in the namespace, and count the others."""
    kept: list[OriginChange] = []
    refused = 0
    for scheme, bucket, key, is_removal, sent_at_s in changes:
        if len(kept) + refused >= CHANGES_MAX:
            raise EventFormatError(f"it has more than {CHANGES_MAX} changes")
        try:
            raw_key = key.encode("utf-8", "surrogateescape")
            kept.append(OriginChange(scheme, bucket, raw_key, is_removal, sent_at_s))
        except ValueError:
            refused += 1
    return ReportedChanges(kept, refused)


def _seconds(text: str) -> float:
    """Return a time of ISO 8601 in seconds since 1970, of UTC if it names no zone; 0 for any other text."""
    try:
        time = datetime.fromisoformat(text) if len(text) <= 40 else None
        return 0.0 if time is None else max(0.0, time.replace(tzinfo=time.tzinfo or UTC).timestamp())
    except (ValueError, OverflowError, OSError):
        return 0.0
