"""The content list of a seal: every name with its version and checksum, in the order of an image.

The file begins with MAGIC. Each entry follows as two bytes of length, little-endian, and that many bytes of msgpack, a
SnapshotEntry as an array. The id of a list is the SHA-256 of the file, so equal contents have equal ids.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator
from typing import Annotated, BinaryIO

import msgspec

from headrace.base.decoding import decode_with, msgpack_decoder
from headrace.base.errors import InvalidImageError
from headrace.seal.erofs import NAME_BYTES_MAX, PATH_BYTES_MAX

MAGIC = b"headrace seal 1\n"
_LENGTH_BYTES = 2


class SnapshotEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One name of a seal. path: from the top, which is b"". mode: with the type; uid, gid: None where the origin stores
    none, and the image then shows its own. token, checksum: of a file, as its origin and this node name its bytes. The
    checksum is the xxh3 of the only block, or of the checksums of all blocks; 0 for an empty file. It is None where the
    cache lacked the bytes when a lazy seal was made."""

    path: bytes
    mode: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
    size_bytes: int = 0
    mtime_ns: int = 0
    uid: int | None = None
    gid: int | None = None
    token: str = ""
    checksum: int | None = 0

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_missing(self) -> bool:
        """Return whether the cache lacked the bytes."""
        return self.checksum is None

    def has_bytes_of(self, other: SnapshotEntry) -> bool:
        """Return whether both names have the same bytes. Where a checksum is unknown, the origin's version decides."""
        if self.is_file != other.is_file or self.size_bytes != other.size_bytes:
            return False
        if self.checksum is not None and other.checksum is not None:
            return self.checksum == other.checksum
        return (self.token, self.token or self.mtime_ns) == (other.token, other.token or other.mtime_ns)


class SnapshotWriter:
    """Writes a list to a file; `finish` returns its id."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256(MAGIC)
        self._encoder = msgspec.msgpack.Encoder()
        self.missing = 0
        """The number of files that the cache lacked."""
        file.write(MAGIC)

    def add(self, entry: SnapshotEntry) -> None:
        body = self._encoder.encode(entry)
        record = len(body).to_bytes(_LENGTH_BYTES, "little") + body
        self._digest.update(record)
        self._file.write(record)
        self.missing += entry.is_missing

    def finish(self) -> str:
        return self._digest.hexdigest()


def read_snapshot(file: BinaryIO, id: str | None = None) -> Iterator[SnapshotEntry]:
    """Yield the entries of a list. id: the one that it must have; it is known at the end only. Raises InvalidImageError
    for anything that no writer wrote: a path that leaves the tree, names out of order, another id."""
    digest = hashlib.sha256()
    decoder = msgpack_decoder(SnapshotEntry)
    if file.read(len(MAGIC)) != MAGIC:
        raise _refused("it does not begin as one")
    digest.update(MAGIC)
    folders: list[bytes] = []
    before: tuple[bytes, ...] | None = None
    while head := file.read(_LENGTH_BYTES):
        body = file.read(int.from_bytes(head, "little"))
        if len(head) < _LENGTH_BYTES or len(body) != int.from_bytes(head, "little"):
            raise _refused("it ends in the middle of an entry")
        try:
            entry: SnapshotEntry = decode_with(decoder.decode, body)
        except msgspec.DecodeError as error:
            raise _refused(str(error)) from error
        before = _checked(entry, before, folders)
        digest.update(head + body)
        yield entry
    if before is None:
        raise _refused("it has no entry")
    if id is not None and digest.hexdigest() != id:
        raise _refused(f"its id is {digest.hexdigest()[:12]}, and {id[:12]} was recorded")


def _checked(
    entry: SnapshotEntry, before: tuple[bytes, ...] | None, folders: list[bytes]
) -> tuple[bytes, ...]:
    """Return the names of an entry's path, after checking that it follows the one before and lies in a directory that
    the list has. folders: the paths of the directories that are open; this one is added."""
    names = tuple(entry.path.split(b"/")) if entry.path else ()
    if before is None and (entry.is_file or names):
        raise _refused("its top is no directory")
    if before is not None and names <= before:
        raise _refused(f"{entry.path[:80]!r} is out of order")
    if len(entry.path) > PATH_BYTES_MAX or not all(map(_is_name, names)):
        raise _refused(f"{entry.path[:80]!r} is no path of a file")
    if not _is_possible(entry):
        raise _refused(f"{entry.path[:80]!r} has impossible attributes")
    parent = entry.path.rpartition(b"/")[0]
    while folders and folders[-1] != parent:
        folders.pop()
    if names and not folders:
        raise _refused(f"{entry.path[:80]!r} is in no directory of the list")
    if not entry.is_file:
        folders.append(entry.path)
    return names


def _is_name(name: bytes) -> bool:
    return name not in (b"", b".", b"..") and len(name) <= NAME_BYTES_MAX and b"\0" not in name


def _is_possible(entry: SnapshotEntry) -> bool:
    ids = (entry.uid or 0, entry.gid or 0)
    return (
        (entry.is_file or stat.S_ISDIR(entry.mode))
        and 0 <= entry.size_bytes < 1 << 63
        and -(1 << 63) <= entry.mtime_ns < 1 << 63
        and all(0 <= id < 0xFFFFFFFF for id in ids)
        and (entry.checksum is not None or (entry.is_file and entry.size_bytes > 0))
        and 0 <= (entry.checksum or 0) < 1 << 64
    )


def _refused(why: str) -> InvalidImageError:
    return InvalidImageError("the content list of a seal", why=why, hint="seal again")


def differences(
    old: Iterable[SnapshotEntry], new: Iterable[SnapshotEntry]
) -> Iterator[tuple[str, SnapshotEntry]]:
    """Yield what changed from one list to another, in order: "added", "removed" or "changed", and the entry. Only the
    bytes of files count, not times or owners."""
    olds, news = iter(old), iter(new)
    left, right = next(olds, None), next(news, None)
    while left is not None or right is not None:
        if right is None or (left is not None and _names(left) < _names(right)):
            assert left is not None
            yield "removed", left
            left = next(olds, None)
        elif left is None or _names(right) < _names(left):
            yield "added", right
            right = next(news, None)
        else:
            if not left.has_bytes_of(right):
                yield "changed", right
            left, right = next(olds, None), next(news, None)


def _names(entry: SnapshotEntry) -> list[bytes]:
    return entry.path.split(b"/") if entry.path else []
