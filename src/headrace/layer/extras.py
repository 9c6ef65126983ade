"""What an object has beside bytes and a file's attributes, in an attribute of the file that holds its bytes: in the
upper layer and, by the rename that lets it go from there, in the cache.

It belongs to those bytes: a file that was written, or touched, since has none.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from headrace.base.model import Extras

ATTRIBUTE = "trusted.headrace.extras"


class _Record(msgspec.Struct, array_like=True):
    size_bytes: int
    mtime_ns: int
    metadata: dict[str, str]
    headers: dict[str, str]
    tags: dict[str, str]


def note_extras(fd: int, extras: Extras) -> None:
    """The file is whole, and has these from now on. OSError for more than its file system keeps in an attribute."""
    if extras.is_empty:
        with contextlib.suppress(OSError):
            os.removexattr(fd, ATTRIBUTE)
        return
    found = os.fstat(fd)
    record = _Record(found.st_size, found.st_mtime_ns, extras.metadata, extras.headers, extras.tags or {})
    os.setxattr(fd, ATTRIBUTE, msgspec.msgpack.encode(record))


def extras_of(at: bytes | int, found: os.stat_result) -> Extras | None:
    """at: the file, by path or descriptor. None: nothing was noted of what it is now."""
    try:
        record = msgspec.msgpack.decode(os.getxattr(at, ATTRIBUTE), type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None
    if (record.size_bytes, record.mtime_ns) != (found.st_size, found.st_mtime_ns):
        return None
    return Extras(record.metadata, record.headers, record.tags)


def raw_extras(fd: int) -> bytes:
    """As it is kept, for a copy of the file; b"" for none."""
    try:
        return os.getxattr(fd, ATTRIBUTE)
    except OSError:
        return b""
