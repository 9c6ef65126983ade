"""What an object is, as S3 tells it: size, time and ETag of something of the merged tree.

An object of an origin has the origin's ETag; where that has none, one made of size and time. A file that was written
by the gateway has the MD5 of its bytes, kept in an attribute of the file with the size and time for which it holds; one
that was written, or changed, by a mount has one made of size and time. One that is no MD5 has a `-` in it: clients then
don't take it for one.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat

import msgspec

from headrace.base.beneath import SafePath
from headrace.base.decoding import decode_json
from headrace.base.model import Entry
from headrace.s3.checksums import Checksum
from headrace.sdk.merged_tree import FileStat

_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]*)?")
ATTRIBUTE = "trusted.headrace.s3"
PART_RUNS_MAX = 64
"""An attribute has some 4 KiB on ext4; parts are nearly always equal but for the last."""
MARKER = "trusted.headrace.folder"
"""Of a folder that was put as an object, `key/`: it stays when it is empty."""


class Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """mtime_text: as a client gave it by x-amz-meta-mtime. parts: how many of which size, in order; empty where they
    are not known."""

    etag: str
    size_bytes: int
    mtime_ns: int
    mtime_text: str = ""
    checksum: Checksum | None = None
    parts: tuple[tuple[int, int], ...] = ()


class ObjectAttributes(msgspec.Struct, frozen=True):
    """etag: with its quotes. checksum and parts: as of Record, where they are known."""

    size_bytes: int
    mtime_ns: int
    etag: str
    mtime_text: str = ""
    checksum: Checksum | None = None
    parts: tuple[tuple[int, int], ...] = ()


def facts_of(found: FileStat, at: SafePath | bytes | int) -> ObjectAttributes:
    """at: a file of the upper layer, by path or descriptor; -1 for an Entry."""
    if isinstance(found, Entry):
        version = found.version
        token = version.token
        if not token:
            token = made_etag(version.size_bytes, version.mtime_ns)
        elif not token.startswith(('"', "W/")):
            token = f'"{token}"'
        return ObjectAttributes(version.size_bytes, version.mtime_ns, token)
    record = _record_of(at)
    if record is not None and (record.size_bytes, record.mtime_ns) == (found.st_size, found.st_mtime_ns):
        return ObjectAttributes(
            *(found.st_size, found.st_mtime_ns, f'"{record.etag}"', record.mtime_text),
            checksum=record.checksum,
            parts=record.parts,
        )
    return ObjectAttributes(found.st_size, found.st_mtime_ns, made_etag(found.st_size, found.st_mtime_ns))


def with_noted(facts: ObjectAttributes, fd: int) -> ObjectAttributes:
    """Add what was noted when these bytes were put here. fd: of a complete cache file, which the layer gave away."""
    record = _record_of(fd)
    if record is None:
        return facts
    found = os.fstat(fd)
    if (record.size_bytes, record.mtime_ns) != (found.st_size, found.st_mtime_ns):
        return facts
    return msgspec.structs.replace(facts, checksum=record.checksum, parts=record.parts)


def note(
    fd: int,
    etag: str,
    mtime_text: str = "",
    *,
    checksum: Checksum | None = None,
    parts: tuple[tuple[int, int], ...] = (),
) -> os.stat_result:
    """The file is whole, and has this ETag from now on. etag: without quotes, "" for one made of size and time.
    parts: as of Record; of more than PART_RUNS_MAX kinds they are not kept."""
    if mtime_text:
        mtime_ns = parse_mtime(mtime_text)
        os.utime(fd, ns=(mtime_ns, mtime_ns))
    found = os.fstat(fd)
    etag = etag or made_etag(found.st_size, found.st_mtime_ns).strip('"')
    kept = parts if len(parts) <= PART_RUNS_MAX else ()
    record = Record(etag, found.st_size, found.st_mtime_ns, mtime_text, checksum, kept)
    with contextlib.suppress(OSError):  # a file system without attributes: then the ETag is made anew
        os.setxattr(fd, ATTRIBUTE, msgspec.json.encode(record))
    return found


def made_etag(size_bytes: int, mtime_ns: int) -> str:
    return f'"{mtime_ns:x}-{size_bytes:x}"'


def parse_mtime(text: str) -> int:
    """Seconds with a fraction, as rclone and s3fs write them, in ns. ValueError."""
    seconds, _, fraction = text.partition(".")
    if not _SECONDS.fullmatch(text):
        raise ValueError(text)
    return int(seconds) * 1_000_000_000 + int((fraction + "000000000")[:9])


def mark_folder(at: SafePath) -> None:
    with contextlib.suppress(OSError):
        at.setxattr(MARKER, b"")


def unmark_folder(at: SafePath) -> None:
    with contextlib.suppress(OSError):
        at.removexattr(MARKER)


def is_marked(at: SafePath) -> bool:
    try:
        at.getxattr(MARKER)
    except OSError:
        return False
    return True


def is_file(found: FileStat) -> bool:
    return isinstance(found, Entry) or stat.S_ISREG(found.st_mode)


def _record_of(at: SafePath | bytes | int) -> Record | None:
    try:
        value = at.getxattr(ATTRIBUTE) if isinstance(at, SafePath) else os.getxattr(at, ATTRIBUTE)
        return decode_json(value, Record)
    except (OSError, msgspec.MsgspecError):
        return None
