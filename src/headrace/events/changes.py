"""A change that an origin reports, and the limits of what is believed of one."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.base.namespace_path import DEPTH_MAX, PATH_BYTES_MAX, check_name

EVENTS_BYTES_MAX = 1 << 20
"""The largest message of a queue and the largest body of a post. SQS, Event Grid and Pub/Sub send less, or as much."""
CHANGES_MAX = 5000
"""The most changes of one message."""
KEY_BYTES_MAX = PATH_BYTES_MAX
"""The longest key. Those of S3, GCS and Azure have at most 1024 bytes or characters."""
BUCKET_CHARACTERS_MAX = 20_000
"""Enough for the nodes of a far cluster, which stand in the place of a bucket."""

Scheme = Literal["s3", "gs", "az", "headrace"]


class EventFormatError(ValueError):
    """A message is none of the known forms of events. The text names no content of it."""


class OriginChange(msgspec.Struct, frozen=True):
    """A change of one object. scheme: of URLs of that kind of origin. is_removal: it was removed; otherwise created or
    replaced. sent_at_s: seconds since 1970 by the clock of the origin; 0: unknown."""

    scheme: Scheme
    bucket: str
    key: bytes
    is_removal: bool = False
    sent_at_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a key that is no path: such an object has no name in the namespace."""
        if not 0 < len(self.key) <= KEY_BYTES_MAX:
            raise ValueError("the key is empty or too long")
        if not 0 < len(self.bucket) <= BUCKET_CHARACTERS_MAX or not self.bucket.isascii():
            raise ValueError("the bucket is no name")
        names = self.key.rstrip(b"/").split(b"/")
        if len(names) > DEPTH_MAX:
            raise ValueError(f"a key of {len(names)} names: {DEPTH_MAX} are allowed")
        for name in names:
            check_name(name)


class ReportedChanges(msgspec.Struct, frozen=True):
    """The changes of one message.

    refused: how many changes in it have no name in the namespace. validation_code: what Azure Event Grid wants back, to
    prove that this receiver wants its events; "": nothing. is_everything: anything at the origin may have changed.
    """

    changes: list[OriginChange]
    refused: int = 0
    validation_code: str = ""
    is_everything: bool = False
