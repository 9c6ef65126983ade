"""Define the record of a policy: its text, and the versions before it. Nodes share it, and keep it in a file."""

from __future__ import annotations

import itertools
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.base.decoding import decode_json
from headrace.base.errors import PathNotFoundError
from headrace.policy.limits import POLICY_AUTHOR_MAX, POLICY_TEXT_MAX

VERSIONS_KEPT_MAX = 16
RECORD_BYTES_MAX = 1 << 20
"""etcd accepts 1.5 MiB. The longest document of the widest characters takes 256 KiB."""


class PolicyVersion(msgspec.Struct, frozen=True):
    """Holds one version of a policy. number: from 1. author: who set it, as the command was told. set_at_s: seconds
    since 1970."""

    number: Annotated[int, Meta(ge=1, le=1 << 53)]
    text: Annotated[str, Meta(max_length=POLICY_TEXT_MAX)]
    author: Annotated[str, Meta(max_length=POLICY_AUTHOR_MAX)] = ""
    set_at_s: float = 0.0


class PolicyRecord(msgspec.Struct, frozen=True):
    """Holds the versions of a policy, the one in force last. Empty: no policy was ever set."""

    versions: Annotated[list[PolicyVersion], Meta(max_length=VERSIONS_KEPT_MAX)] = []

    @property
    def number(self) -> int:
        """Return the number of the version in force; 0: there is none."""
        return self.versions[-1].number if self.versions else 0

    @property
    def text(self) -> str:
        return self.versions[-1].text if self.versions else ""

    def version(self, number: int) -> PolicyVersion:
        """Return a version. Raise PathNotFoundError for one that is not kept."""
        for version in self.versions:
            if version.number == number:
                return version
        kept = (
            f"versions {self.versions[0].number} to {self.number} are kept"
            if self.versions
            else "none is set"
        )
        if number < 1:
            raise PathNotFoundError("an earlier version of the policy", why=kept)
        raise PathNotFoundError(f"version {number} of the policy", why=kept)

    def includes(self, other: PolicyRecord) -> bool:
        """Return whether another record is this one, or one of those that it was made from. Versions before the oldest
        one that is kept count as such, unless they were set later than this one: then the cluster began anew."""
        if not other.versions or other.versions[-1] in self.versions:
            return True
        if not self.versions or other.number >= self.versions[0].number:
            return False
        return other.versions[-1].set_at_s <= self.versions[-1].set_at_s

    def followed_by(self, text: str, *, author: str, now_s: float) -> PolicyRecord:
        """Return the record with another version in force. The oldest versions go where there are too many."""
        version = PolicyVersion(self.number + 1, text, author[:POLICY_AUTHOR_MAX], now_s)
        versions = [*self.versions, version][-VERSIONS_KEPT_MAX:]
        while len(versions) > 1 and len(msgspec.json.encode(versions)) > RECORD_BYTES_MAX - 1024:
            del versions[0]
        return PolicyRecord(versions)


def encode_record(record: PolicyRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(raw: bytes) -> PolicyRecord:
    """Decode a record of another node or of a file. Raises msgspec.DecodeError."""
    if len(raw) > RECORD_BYTES_MAX:
        raise msgspec.ValidationError(f"a record of {len(raw)} bytes: {RECORD_BYTES_MAX} are allowed")
    record = decode_json(raw, PolicyRecord)
    numbers = [version.number for version in record.versions]
    if any(later <= earlier for earlier, later in itertools.pairwise(numbers)):
        raise msgspec.ValidationError("the versions of the policy are not in order")
    return record
