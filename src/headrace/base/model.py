"""The values that all packages share: ids, versions, ranges. No I/O.

They are created for each name that is looked up: a msgspec struct costs a quarter of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NewType

import msgspec

FileId = NewType("FileId", int)
"""The id of one version of one file, or of a directory, on this host; never used again. 48 bits: the FUSE session uses
the upper 16 bits of a node id itself. It is also the inode number that users see."""

ROOT_ID = FileId(1)
FILE_ID_MAX = (1 << 48) - 1

BLOCK_SIZE_BYTES = 1 << 20
"""The unit of presence, fill and checksum."""


class Kind(IntEnum):
    FILE = 1
    DIRECTORY = 2


class Version(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The content of a key, as its origin names it.

    token: the ETag as the origin sends it, with its quotes; "" if it sends none, and then size and mtime alone name the
    content. Two equal Versions have the same bytes. If both have a strong token, size and token decide and mtime_ns
    does not: the response to an upload has a token, but not the time that later calls return.
    """

    size_bytes: int
    mtime_ns: int
    token: str = ""

    @property
    def text(self) -> str:
        """Return a text that users can compare: it differs whenever the bytes may differ."""
        return self.token or f"{self.size_bytes}-{self.mtime_ns}"

    def _identity(self) -> tuple[int, str | int, str]:
        # RFC 9110, 8.8.1: bytes of one weak token may differ
        strong = self.token and not self.token.startswith("W/")
        return self.size_bytes, "" if strong else self.mtime_ns, self.token

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Version) else NotImplemented

    def __ne__(self, other: object) -> bool:  # a struct's own does not call __eq__
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


class ObjectMetadata(msgspec.Struct, frozen=True):
    """The attributes of an object besides its bytes and a file's attributes, as in S3. metadata: the user's, names in
    lower case. headers: Content-Type and similar ones. tags: None if unknown."""

    metadata: dict[str, str] = {}
    headers: dict[str, str] = {}
    tags: dict[str, str] | None = {}

    @property
    def is_empty(self) -> bool:
        return not (self.metadata or self.headers or self.tags)


class Arrived(msgspec.Struct, frozen=True):
    """The result of a read of some bytes of an object. body: os.pwrite and a checksum take it without a copy. extras:
    of the whole object, if they came with the bytes; else None. from_origin: the bytes come from the origin itself, so
    no node has verified a checksum yet."""

    body: bytes | bytearray | memoryview
    extras: ObjectMetadata | None = None
    from_origin: bool = False


class Attributes(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The attributes of a file besides its bytes; None: unknown, or not stored. put_id identifies one call of
    Origin.put, so that a later attempt recognizes the object as its own. It is no attribute of the file and does not
    count in comparisons. Neither do extras, which the index does not have."""

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

    def __ne__(self, other: object) -> bool:  # a struct's own does not call __eq__
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """One object at an origin. key: below the origin's root, `/`-separated, no leading slash; names that are not UTF-8
    are surrogate-escaped, as os.fsdecode does. attributes: None unless the origin stores them and the call returns
    them."""

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
    attributes: Attributes | None = None  # of a file that this node uploaded: all of them but put_id

    @property
    def mtime_ns(self) -> int:
        """Return the mtime that users see."""
        attributes = self.attributes
        return (
            self.version.mtime_ns
            if attributes is None or attributes.mtime_ns is None
            else attributes.mtime_ns
        )


def block_count(size_bytes: int) -> int:
    """Return the number of blocks of a file; 0 for an empty one."""
    return (size_bytes + BLOCK_SIZE_BYTES - 1) // BLOCK_SIZE_BYTES


def block_range(start: int, end: int) -> range:
    """Return the blocks that the byte range start..end (end exclusive) touches."""
    return range(start // BLOCK_SIZE_BYTES, (end + BLOCK_SIZE_BYTES - 1) // BLOCK_SIZE_BYTES)


def block_pieces(data: memoryview, start: int) -> Iterator[memoryview]:
    """Yield the bytes of each block. data: bytes of a file from `start` on; the first and last block may be partial."""
    offset = 0
    while offset < len(data):
        step = BLOCK_SIZE_BYTES - (start + offset) % BLOCK_SIZE_BYTES
        yield data[offset : offset + step]
        offset += step
