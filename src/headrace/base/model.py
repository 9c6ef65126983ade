"""The words that all rooms share: ids, versions, ranges. Values only; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

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


@dataclass(frozen=True, slots=True)
class Version:
    """What content a key has, as its origin names it.

    token: the ETag, as the origin sends it (with its quotes), where there is one; else "" and the content is named
    by size and mtime alone. Two equal Versions are the same bytes.
    """

    size_bytes: int
    mtime_ns: int
    token: str = ""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object at an origin. key: full key below the origin's root, `/`-separated, no leading slash; names that
    are not UTF-8 are surrogate-escaped, as os.fsdecode does."""

    key: str
    version: Version


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in the tree, as the index has it."""

    id: FileId
    parent: FileId
    name: bytes
    kind: Kind
    version: Version  # of a directory: size 0, its mtime, ""


def block_count(size_bytes: int) -> int:
    """Blocks of a file of that size; 0 for an empty one."""
    return (size_bytes + BLOCK_SIZE_BYTES - 1) // BLOCK_SIZE_BYTES


def block_range(start: int, end: int) -> range:
    """The blocks that the byte range start..end (end exclusive) touches."""
    return range(start // BLOCK_SIZE_BYTES, (end + BLOCK_SIZE_BYTES - 1) // BLOCK_SIZE_BYTES)
