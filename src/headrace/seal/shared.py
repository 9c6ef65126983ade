"""The record of a seal that an origin keeps, and its content list there.

Whoever may write to the origin may have written both, so nothing of them is believed: each field is checked, and the
list is read up to the sizes that the record names. The id of the seal decides at the end whether the list is right.

    .headrace/seals/NAME@VERSION.json    SharedRecord
    .headrace/seals/lists/ID             a content list (`seal/snapshot.py`), compressed by gzip
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO, Literal, cast

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import InvalidImageError, UsageError
from headrace.seal.catalogue import SealId
from headrace.seal.snapshot import SnapshotEntry, read_snapshot
from headrace.seal.unpacked_list import write_unpacked

FOLDER = ".headrace/seals"
RECORD_BYTES_MAX = 1 << 16
PACKED_BYTES_MAX = 1 << 30
LIST_BYTES_MAX = 1 << 33
"""Lists of some 50 million files are smaller."""
_RECORD_NAME = re.compile(r"(.+)\.json")
_ID = re.compile(r"[0-9a-f]{64}")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class SharedRecord(msgspec.Struct, frozen=True):
    """A seal at an origin. path: of the sealed directory below the root of the mount. id: of the list. list_bytes,
    packed_bytes: of the list, before and after the compression. created_s: seconds since 1970."""

    format: Literal[1]
    name: str
    version: int
    path: str
    id: str
    files: _Count
    size_bytes: _Count
    created_s: float
    list_bytes: Annotated[int, msgspec.Meta(ge=0, le=LIST_BYTES_MAX)]
    packed_bytes: Annotated[int, msgspec.Meta(gt=0, le=PACKED_BYTES_MAX)]

    @property
    def seal(self) -> SealId:
        return SealId(self.name, self.version)


def record_key(seal: SealId) -> str:
    return f"{FOLDER}/{seal}.json"


def list_key(id: str) -> str:
    return f"{FOLDER}/lists/{id}"


def seal_of_record(key: str) -> SealId | None:
    """Return the seal whose record has a key; None for anything else."""
    match = _RECORD_NAME.fullmatch(key.rpartition("/")[2])
    try:
        return None if match is None else SealId.parse(match[1])
    except UsageError:
        return None


def decode_record(data: bytes, seal: SealId) -> SharedRecord:
    """Decode the record of a seal. Raises InvalidImageError for any that `seal push` would not write."""
    try:
        record = decode_json(data, SharedRecord)
    except msgspec.DecodeError as error:
        raise _refused(seal, f"its record: {error}") from error
    if record.seal != seal:
        raise _refused(seal, "its record is of another seal")
    if not _ID.fullmatch(record.id):
        raise _refused(seal, "its id is no hash")
    if record.path and not all(map(_is_name, record.path.split("/"))):
        raise _refused(seal, "its path leaves the origin")
    return record


def read_packed(file: BinaryIO, record: SharedRecord) -> Iterator[SnapshotEntry]:
    """Yield the entries of a packed list. Raises InvalidImageError for a list that is invalid, is longer than the
    record says, or has another id; the id is known at the end only. Memory is bounded, whatever the list is."""
    with _unpacked(file, record) as unpacked:
        yield from read_snapshot(unpacked, record.id)


def check_packed(file: BinaryIO, record: SharedRecord) -> None:
    """Check a packed list from its beginning to its end. Raises InvalidImageError."""
    file.seek(0)
    for _ in read_packed(file, record):
        pass


def unpack_shared(file: BinaryIO, record: SharedRecord, out: BinaryIO) -> None:
    """Check a packed list as `read_packed` does, and unpack it for programs. Raises InvalidImageError."""
    file.seek(0)
    with _unpacked(file, record) as unpacked:
        write_unpacked(unpacked, record.id, out)


@contextmanager
def _unpacked(file: BinaryIO, record: SharedRecord) -> Iterator[BinaryIO]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        try:
            yield cast("BinaryIO", _BoundedFile(unpacked, record))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _refused(record.seal, f"its list: {error}") from error


def measure_list(file: BinaryIO, id: str) -> int:
    """Return the unpacked bytes of a packed list of this node, after checking all of it. Raises InvalidImageError."""
    with gzip.GzipFile(fileobj=file) as unpacked:
        for _ in read_snapshot(cast("BinaryIO", unpacked), id):
            pass
        return unpacked.tell()


class _BoundedFile:
    """Reads an unpacked list up to the size that its record names."""

    def __init__(self, file: gzip.GzipFile, record: SharedRecord) -> None:
        self._file = file
        self._seal = record.seal
        self._left_bytes = record.list_bytes

    def read(self, size_bytes: int) -> bytes:
        body = self._file.read(size_bytes)
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise _refused(self._seal, "its list is longer than its record says")
        return body


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "\0" not in name


def _refused(seal: SealId, why: str) -> InvalidImageError:
    return InvalidImageError(
        f"seal {seal} at the origin", why=why, hint="push it again under another version"
    )
