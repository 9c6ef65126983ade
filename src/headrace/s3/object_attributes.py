"""Compute the attributes of objects as S3 defines them: size, time and ETag of a file of the merged tree.

An object of an origin has the origin's ETag; without one, an ETag made of size and time. A file that the gateway
wrote has the MD5 of its bytes. The MD5 is in an attribute of the file, with the size and time for which it is valid.
A file that a mount wrote or changed has an ETag made of size and time. An ETag that is no MD5 contains a `-`, so that
clients don't use it as one.
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
from headrace.overlay.mark_names import MARKS
from headrace.overlay.merged_view import FileStat
from headrace.s3.checksums import Checksum

_SECONDS = re.compile(r"[0-9]{1,10}(\.[0-9]*)?")
PART_RUNS_MAX = 64
"""Most runs of equal parts that are recorded in an attribute, some 4 KiB on ext4. Mostly all parts but the last are
equal."""


class Record(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Holds what the gateway records at a file. `mtime_text` is the client's x-amz-meta-mtime. `parts` has the count
    and size of each run of equal parts, in order; it is empty if they are not known."""

    etag: str
    size_bytes: int
    mtime_ns: int
    mtime_text: str = ""
    checksum: Checksum | None = None
    parts: tuple[tuple[int, int], ...] = ()


class ObjectAttributes(msgspec.Struct, frozen=True):
    """Holds the attributes of one object. `etag` includes its quotes. `checksum` and `parts` are Record's, if known."""

    size_bytes: int
    mtime_ns: int
    etag: str
    mtime_text: str = ""
    checksum: Checksum | None = None
    parts: tuple[tuple[int, int], ...] = ()


def attributes_of(file_stat: FileStat, target: SafePath | bytes | int) -> ObjectAttributes:
    """Return the attributes of an object. `target` is its upper file, by path or descriptor; -1 for an Entry."""
    if isinstance(file_stat, Entry):
        version = file_stat.version
        token = version.token
        if not token:
            token = synthetic_etag(version.size_bytes, version.mtime_ns)
        elif not token.startswith(('"', "W/")):
            token = f'"{token}"'
        return ObjectAttributes(version.size_bytes, version.mtime_ns, token)
    record = _record_of(target)
    size_bytes, mtime_ns = file_stat.st_size, file_stat.st_mtime_ns
    if record is None or (record.size_bytes, record.mtime_ns) != (size_bytes, mtime_ns):
        return ObjectAttributes(size_bytes, mtime_ns, synthetic_etag(size_bytes, mtime_ns))
    etag, checksum, parts = f'"{record.etag}"', record.checksum, record.parts
    return ObjectAttributes(size_bytes, mtime_ns, etag, record.mtime_text, checksum, parts)


def with_recorded(attributes: ObjectAttributes, fd: int) -> ObjectAttributes:
    """Add the checksum and parts that the gateway recorded at a file. `fd` is its demoted, complete cache file."""
    record = _record_of(fd)
    if record is None:
        return attributes
    file_stat = os.fstat(fd)
    if (record.size_bytes, record.mtime_ns) != (file_stat.st_size, file_stat.st_mtime_ns):
        return attributes
    return msgspec.structs.replace(attributes, checksum=record.checksum, parts=record.parts)


def write_record(
    fd: int,
    etag: str,
    mtime_text: str = "",
    *,
    checksum: Checksum | None = None,
    parts: tuple[tuple[int, int], ...] = (),
) -> os.stat_result:
    """Record the ETag of a file that is complete, and return its stat result. `etag` has no quotes; "" makes one of
    size and time. `parts` are those of Record; more than PART_RUNS_MAX runs are not recorded."""
    if mtime_text:
        mtime_ns = parse_mtime(mtime_text)
        os.utime(fd, ns=(mtime_ns, mtime_ns))
    file_stat = os.fstat(fd)
    etag = etag or synthetic_etag(file_stat.st_size, file_stat.st_mtime_ns).strip('"')
    kept = parts if len(parts) <= PART_RUNS_MAX else ()
    record = Record(etag, file_stat.st_size, file_stat.st_mtime_ns, mtime_text, checksum, kept)
    with contextlib.suppress(OSError):  # a file system without attributes has ETags of size and time only
        os.setxattr(fd, MARKS.s3, msgspec.json.encode(record))
    return file_stat


def synthetic_etag(size_bytes: int, mtime_ns: int) -> str:
    return f'"{mtime_ns:x}-{size_bytes:x}"'


def parse_mtime(text: str) -> int:
    """Return the time in ns of seconds with a fraction, as rclone and s3fs write them. Raises ValueError."""
    seconds, _, fraction = text.partition(".")
    if not _SECONDS.fullmatch(text):
        raise ValueError(text)
    return int(seconds) * 1_000_000_000 + int((fraction + "000000000")[:9])


def mark_directory(directory: SafePath) -> None:
    with contextlib.suppress(OSError):
        directory.setxattr(MARKS.s3_folder, b"")


def unmark_directory(directory: SafePath) -> None:
    with contextlib.suppress(OSError):
        directory.removexattr(MARKS.s3_folder)


def is_marked(directory: SafePath) -> bool:
    try:
        directory.getxattr(MARKS.s3_folder)
    except OSError:
        return False
    return True


def is_file(file_stat: FileStat) -> bool:
    return isinstance(file_stat, Entry) or stat.S_ISREG(file_stat.st_mode)


def _record_of(target: SafePath | bytes | int) -> Record | None:
    try:
        value = target.getxattr(MARKS.s3) if isinstance(target, SafePath) else os.getxattr(target, MARKS.s3)
        return decode_json(value, Record)
    except (OSError, msgspec.MsgspecError):
        return None
