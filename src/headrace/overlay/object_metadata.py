"""What an object has beside bytes and a file's attributes, in an attribute of the file that holds its bytes: in the
upper layer and, by the rename that lets it go from there, in the cache; and in the cache as its origin told it with the
bytes.

It belongs to those bytes: a file of the layer that was written, or touched, since has none. A cache file is of one
version, and is never written again.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from headrace.base.beneath import SafePath
from headrace.base.decoding import decode_msgpack
from headrace.base.model import ObjectMetadata

ATTRIBUTE = "trusted.headrace.extras"


class _Record(msgspec.Struct, array_like=True):
    """mtime_ns: None in a cache file that was filled. tags: None where they are not known."""

    size_bytes: int
    mtime_ns: int | None
    metadata: dict[str, str]
    headers: dict[str, str]
    tags: dict[str, str] | None


def note_extras(fd: int, extras: ObjectMetadata) -> None:
    """The file is whole, and has these from now on. OSError for more than its file system keeps in an attribute."""
    if extras.is_empty:
        with contextlib.suppress(OSError):
            os.removexattr(fd, ATTRIBUTE)
        return
    found = os.fstat(fd)
    record = _Record(found.st_size, found.st_mtime_ns, extras.metadata, extras.headers, extras.tags or {})
    os.setxattr(fd, ATTRIBUTE, msgspec.msgpack.encode(record))


def note_told(at: bytes | int, size_bytes: int, extras: ObjectMetadata) -> None:
    """In a cache file, of that size when it is whole; also that there are none. What its file system does not keep is
    not noted: who wants it asks the origin."""
    record = _Record(size_bytes, None, extras.metadata, extras.headers, extras.tags)
    with contextlib.suppress(OSError):
        os.setxattr(at, ATTRIBUTE, msgspec.msgpack.encode(record))


def drop_told(at: bytes) -> None:
    """What note_told noted goes, and only that."""
    record = _record_of(at)
    if record is not None and record.mtime_ns is None:
        with contextlib.suppress(OSError):
            os.removexattr(at, ATTRIBUTE)


def extras_of(at: SafePath | bytes | int, found: os.stat_result) -> ObjectMetadata | None:
    """at: the file, by descriptor or, where others change names, SafePath. None: nothing was noted of what it is
    now."""
    record = _record_of(at)
    if (
        record is None
        or record.size_bytes != found.st_size
        or record.mtime_ns not in (None, found.st_mtime_ns)
    ):
        return None
    return ObjectMetadata(record.metadata, record.headers, record.tags)


def _record_of(at: SafePath | bytes | int) -> _Record | None:
    try:
        value = at.getxattr(ATTRIBUTE) if isinstance(at, SafePath) else os.getxattr(at, ATTRIBUTE)
        return decode_msgpack(value, _Record)
    except (OSError, msgspec.MsgspecError):
        return None


def raw_extras(fd: int) -> bytes:
    """As it is kept, for a copy of the file; b"" for none."""
    try:
        return os.getxattr(fd, ATTRIBUTE)
    except OSError:
        return b""
