"""The words that all rooms share: ids, versions, ranges. Values only; no I/O.

They are made for each name that is looked up: msgspec's structs cost a quarter of what a frozen dataclass does.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

import msgspec

FileId = NewType("FileId", int)
"""Names one version of one file, or a directory, on this host; never used again. 48 bits: the FUSE session keeps
the upper 16 bits of a node id to itself. It is also the inode number that users see."""

ROOT_ID = FileId(1)
FILE_ID_MAX = (1 << 48) - 1

BLOCK_SIZE_BYTES = 1 << 20
"""Unit of presence, fill and checksum."""


class Kind(IntEnum):
    FILE = 1
    DIRECTORY = 2


class Version(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What content a key has, as its origin names it.

    token: the ETag, as the origin sends it (with its quotes), where there is one; else "" and the content is named
    by size and mtime alone. Two equal Versions are the same bytes. Where both have a strong token, size and token
    decide and mtime_ns does not: an upload is answered with a token, and without the time that later calls tell.
    """

    size_bytes: int
    mtime_ns: int
    token: str = ""

    @property
    def text(self) -> str:
        """For users, who compare it: another one where the bytes may be others."""
        return self.token or f"{self.size_bytes}-{self.mtime_ns}"

    def _identity(self) -> tuple[int, str | int, str]:
        strong = self.token and not self.token.startswith(
            "W/"
        )  # RFC 9110, 8.8.1: a weak one may be of other bytes
        return self.size_bytes, "" if strong else self.mtime_ns, self.token

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Version) else NotImplemented

    def __ne__(self, other: object) -> bool:  # a struct's own does not ask __eq__
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


class ObjectMetadata(msgspec.Struct, frozen=True):
    """What an object has beside bytes and a file's attributes, as S3 tells it. metadata: the user's, names in lower
    case; headers: Content-Type and the like; tags: None where they are not known."""

    metadata: dict[str, str] = {}
    headers: dict[str, str] = {}
    tags: dict[str, str] | None = {}

    @property
    def is_empty(self) -> bool:
        return not (self.metadata or self.headers or self.tags)


class Arrived(msgspec.Struct, frozen=True):
    """What a read of some bytes of an object brought. body: what os.pwrite and a checksum take without a copy. extras:
    of the whole object, where they came along; None: nothing was said of them. from_origin: by the origin itself, so
    that nobody has compared it with a checksum yet."""

    body: bytes | bytearray | memoryview
    extras: ObjectMetadata | None = None
    from_origin: bool = False


class Attributes(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a file has beside its bytes; None: not known, or not kept. put_id names one call of Origin.put, by which
    a later attempt knows the object as its own; it is no attribute of the file and makes no two differ. Nor do extras,
    which the index does not have."""

    mtime_ns: int | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    put_id: str = ""
    extras: ObjectMetadata | None = None

    def _identity(self) -> tuple[int | None, ...]:
        return self.mtime_ns, self.mode, self.uid, self.gid

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Attributes) else NotImplemented

    def __ne__(self, other: object) -> bool:  # a struct's own does not ask __eq__
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """One object at an origin. key: full key below the origin's root, `/`-separated, no leading slash; names that
    are not UTF-8 are surrogate-escaped, as os.fsdecode does. attributes: where the origin keeps them, and the call
    that found the object tells them; else None."""

    key: str
    version: Version
    attributes: Attributes | None = None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One name in the tree, as the index has it."""

    id: FileId
    parent: FileId
    name: bytes
    kind: Kind
    version: Version  # of a directory: size 0, its mtime, ""
    attributes: Attributes | None = None  # of a file that this node put to its origin: all of them but put_id

    @property
    def mtime_ns(self) -> int:
        """As users see it."""
        known = self.attributes
        return self.version.mtime_ns if known is None or known.mtime_ns is None else known.mtime_ns


def block_count(size_bytes: int) -> int:
    """Blocks of a file of that size; 0 for an empty one."""
    return (size_bytes + BLOCK_SIZE_BYTES - 1) // BLOCK_SIZE_BYTES


def block_range(start: int, end: int) -> range:
    """The blocks that the byte range start..end (end exclusive) touches."""
    return range(start // BLOCK_SIZE_BYTES, (end + BLOCK_SIZE_BYTES - 1) // BLOCK_SIZE_BYTES)
