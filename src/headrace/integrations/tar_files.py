"""Read the files of a tar in mapped memory, which somebody else may have made to harm the reader.

tarfile reads the plain headers, in time and memory that grow with the tar. Its parsers of extended headers and of
sparse files have no limit. So this module reads extended headers itself, and refuses sparse files: a tar of some bytes
can describe one of any size, and the programs that write shards make none.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from typing import Any

EXTENDED_BYTES_MAX = 1 << 16
"""Most bytes of an extended header: a name has at most 4,096."""
EXTENDED_IN_A_ROW_MAX = 4
"""Most extended headers of one file: long name, long link, and the local and the global one of pax."""
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def files_of(shard: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield the name and the bytes of each file, in place. Raises tarfile.TarError for anything but a tar file."""
    try:
        with _Tar.open(fileobj=_Mapped(shard), mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # it would keep one for each file
                if member.isfile():
                    yield member.name, shard[member.offset_data : member.offset_data + member.size]
    except (ValueError, OverflowError, RecursionError) as error:  # of a field that tarfile does not check
        raise tarfile.ReadError(f"a header is not valid: {error}") from None


class _Member(tarfile.TarInfo):
    """Read a header and the extended ones before it."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Return the file that this header begins. tarfile calls it for each header, and lets subclasses replace it."""
        assert isinstance(tar, _Tar)
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"{self.name} is a sparse file; make the tar without --sparse")
        if self.type in (*_LONG, *_PAX):
            return self._extended(tar)
        if self.size < 0:
            raise tarfile.ReadError(f"{self.name} has {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]  # not in the types of tarfile
        tar.check_end(member)
        return member

    def _extended(self, tar: _Tar) -> tarfile.TarInfo:
        tar.count_extended()
        if not 0 <= self.size <= EXTENDED_BYTES_MAX:
            raise tarfile.ReadError(
                f"an extended header has {self.size} bytes, more than {EXTENDED_BYTES_MAX}"
            )
        data = tar.read_blocks(self.size)
        records = _records(data) if self.type in _PAX else {}
        try:
            member = self.fromtarfile(tar)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no file follows an extended header: {error}") from None
        if self.type == tarfile.GNUTYPE_LONGNAME:
            member.name = _text(data.partition(b"\0")[0]).rstrip("/")
        elif self.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            if any(key.startswith(b"GNU.sparse.") for key in records):
                raise tarfile.ReadError(f"{member.name} is a sparse file; make the tar without --sparse")
            if b"path" in records:
                member.name = _text(records[b"path"]).rstrip("/")
            if b"size" in records:
                tar.resize(member, records[b"size"])
        return member


class _Tar(tarfile.TarFile):
    """A tar in mapped memory."""

    members: list[tarfile.TarInfo]
    tarinfo = _Member
    _extended_in_a_row = 0

    def count_extended(self) -> None:
        self._extended_in_a_row += 1
        if self._extended_in_a_row > EXTENDED_IN_A_ROW_MAX:
            raise tarfile.ReadError(f"a file has more than {EXTENDED_IN_A_ROW_MAX} extended headers")

    def read_blocks(self, size: int) -> bytes:
        """Return the bytes after a header, and skip the rest of their last block."""
        assert self.fileobj is not None
        data: bytes = self.fileobj.read(_in_blocks(size))[:size]
        if len(data) < size:
            raise tarfile.ReadError("unexpected end of data")
        return data

    def resize(self, member: tarfile.TarInfo, digits: bytes) -> None:
        """Set the size that an extended header has, and where the next header begins."""
        if not digits.isdigit() or len(digits) > 20:
            raise tarfile.ReadError(f"{member.name} has the size {_text(digits[:40])!r}")
        member.size = int(digits)
        if member.isreg():
            self.offset = member.offset_data + _in_blocks(member.size)
        self.check_end(member)

    def check_end(self, member: tarfile.TarInfo) -> None:
        """Raise tarfile.ReadError if a file ends after the tar. It ends the headers in a row."""
        self._extended_in_a_row = 0
        assert isinstance(self.fileobj, _Mapped)
        if member.isreg() and member.offset_data + member.size > self.fileobj.size_bytes:
            raise tarfile.ReadError("unexpected end of data")


def _in_blocks(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _records(data: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header, in one pass: length, a blank, key, "=", value, a newline."""
    records = {}
    start = 0
    while start < len(data):
        digits, blank, _ = data[start : start + 8].partition(b" ")
        length = int(digits) if blank and digits.isdigit() else 0
        key, equals, value = data[start + len(digits) + 1 : start + length].partition(b"=")
        if not equals or not value.endswith(b"\n") or start + length > len(data):
            raise tarfile.ReadError("an extended header is not valid")
        records[key] = value[:-1]
        start += length
    return records


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


class _Mapped(io.RawIOBase):
    """Present mapped memory as a file, without a copy."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._position = view, 0

    @property
    def size_bytes(self) -> int:
        return len(self._view)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        count = min(len(target), max(0, len(self._view) - self._position))
        target[:count] = self._view[self._position : self._position + count]
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        )
        return self._position

    def tell(self) -> int:
        return self._position
