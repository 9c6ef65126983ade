"""Keep an object's attributes, besides its bytes and the attributes of a file, in an extended attribute of its file.
That file is in the upper layer and, after demotion by a rename, in the cache. A cache file also keeps the attributes
that its origin returned with the bytes.

The attributes belong to those bytes: a file of the layer has none after a write or a change of its times. A cache file
has one version and is never written again.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from headrace.base.beneath import SafePath
from headrace.base.decoding import decode_msgpack
from headrace.base.model import ObjectMetadata
from headrace.overlay.mark_names import MARKS


class _Record(msgspec.Struct, array_like=True):
    """Hold the attribute's value. mtime_ns: None in a cache file that was filled from the origin. tags: None if
    unknown."""

    size_bytes: int
    mtime_ns: int | None
    metadata: dict[str, str]
    headers: dict[str, str]
    tags: dict[str, str] | None


def note_extras(fd: int, extras: ObjectMetadata) -> None:
    """Store the attributes of a complete file. Raises OSError if its file system can't store that many bytes in an
    attribute."""
    if extras.is_empty:
        with contextlib.suppress(OSError):
            os.removexattr(fd, MARKS.extras)
        return
    status = os.fstat(fd)
    record = _Record(status.st_size, status.st_mtime_ns, extras.metadata, extras.headers, extras.tags or {})
    os.setxattr(fd, MARKS.extras, msgspec.msgpack.encode(record))


def store_origin_extras(file: bytes | int, size_bytes: int, extras: ObjectMetadata) -> None:
    """Store the attributes that the origin returned, in a cache file, even if there are none. size_bytes: of the
    complete file. If the file system can't store them, readers request them from the origin."""
    record = _Record(size_bytes, None, extras.metadata, extras.headers, extras.tags)
    with contextlib.suppress(OSError):
        os.setxattr(file, MARKS.extras, msgspec.msgpack.encode(record))


def drop_origin_extras(path: bytes) -> None:
    """Remove the attributes that `store_origin_extras` stored, and no others."""
    record = _record_of(path)
    if record is not None and record.mtime_ns is None:
        with contextlib.suppress(OSError):
            os.removexattr(path, MARKS.extras)


def extras_of(file: SafePath | bytes | int, status: os.stat_result) -> ObjectMetadata | None:
    """Return the stored attributes; None if none belong to the file's current status. file: a descriptor, or a SafePath
    where users change names."""
    record = _record_of(file)
    if (
        record is None
        or record.size_bytes != status.st_size
        or record.mtime_ns not in (None, status.st_mtime_ns)
    ):
        return None
    return ObjectMetadata(record.metadata, record.headers, record.tags)


def _record_of(file: SafePath | bytes | int) -> _Record | None:
    try:
        value = file.getxattr(MARKS.extras) if isinstance(file, SafePath) else os.getxattr(file, MARKS.extras)
        return decode_msgpack(value, _Record)
    except (OSError, msgspec.MsgspecError):
        return None


def raw_extras(fd: int) -> bytes:
    """Return the stored value, for a copy of the file; b"" for none."""
    try:
        return os.getxattr(fd, MARKS.extras)
    except OSError:
        return b""
