"""Tar files of samples (integrations/tar_files.py), with right checksums: whoever can write one can calculate those."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from headrace.integrations.tar_files import files_of
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_tree

_BLOCK = tarfile.BLOCKSIZE
_NAME, _SIZE, _SUM, _TYPE = slice(0, 100), slice(124, 136), slice(148, 156), slice(156, 157)
_SPARSE_V0 = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1,9,1"}
_SPARSE_V1 = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99"}
_WORDS = [
    b"0", b"1", b"3", b"5", b"7", b"L", b"K", b"S", b"x", b"g", b"X", b"V", b"D", b"M", b"ustar  \0", b"ustar\x0000",
    b"00000000000\0", b"77777777777\0", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"11 size=999\n", b"12 path=../a\n",
    b"26 GNU.sparse.major=1\n", b"999999999 a=b\n", b"-5 a=b\n", bytes(512),
]  # fmt: skip


def _files(data: bytes) -> None:
    """Check that the files are parts of the tar, and that none of its bytes are in two of them."""
    shard = memoryview(data)
    count = size_bytes = 0
    for name, content in files_of(shard):
        assert isinstance(name, str) and content.obj is data
        count += 1
        size_bytes += len(content)
    assert count * _BLOCK + size_bytes <= len(data)


def _members(data: bytes) -> list[list[bytes]]:
    """Return name, size, type, the rest of the header, and content of each member."""
    members = []
    while len(data) >= _BLOCK and data[0]:
        header = data[:_BLOCK]
        length = -(-max(0, int(header[_SIZE].strip(b"\0 "), 8)) // _BLOCK) * _BLOCK
        content = data[_BLOCK : _BLOCK + length]
        members.append([header[_NAME], header[_SIZE], header[_TYPE], header[_TYPE.stop :], content])
        data = data[_BLOCK + length :]
    return members


def _tar(members: Any) -> bytes:
    """Return the tar file of `_members`; its checksums are right."""
    tar = b""
    for name, size, type, rest, content in members:
        header = name[:100].ljust(_SIZE.start, b"\0") + size[:12].ljust(12, b"\0") + b"0" * 12
        header = (header + b" " * 8 + type[:1].ljust(1, b"0") + rest)[:_BLOCK].ljust(_BLOCK, b"\0")
        sum_digits = b"%06o\0 " % sum(header)
        tar += header[: _SUM.start] + sum_digits + header[_SUM.stop :] + content
    return tar + bytes(2 * _BLOCK)


def _seed(
    form: int, *names: str, headers: dict[str, str] | None = None, type: bytes = tarfile.REGTYPE
) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.type, entry.pax_headers = type, headers or {}
            entry.size, entry.linkname = 700 if type == tarfile.REGTYPE else 0, "l" * len(name)
            tar.addfile(entry, io.BytesIO(bytes(range(256)) * 3))
    return target.getvalue()[: tar.offset + 2 * _BLOCK]


FUZZERS = [
    Fuzzer(
        "shards",
        "the files of a tar of samples (integrations/tar_files.py)",
        _files,
        (tarfile.TarError,),
        [
            _seed(tarfile.USTAR_FORMAT, "a/1.jpg", "a/1.cls"),
            _seed(tarfile.GNU_FORMAT, "a/1.jpg", "n" * 300),
            _seed(tarfile.GNU_FORMAT, "n" * 300, type=tarfile.SYMTYPE),
            _seed(tarfile.GNU_FORMAT, "d/1", type=tarfile.GNUTYPE_SPARSE),
            _seed(tarfile.PAX_FORMAT, "é" * 60, "2.jpg", headers={"size": "700", "mtime": "1.5"}),
            _seed(tarfile.PAX_FORMAT, "1.bin", headers=_SPARSE_V0),
            _seed(tarfile.PAX_FORMAT, "1.bin", headers=_SPARSE_V1),
        ],
        words=_WORDS,
        mutate=mutate_tree(_members, _tar),
        input_bytes_max=1 << 16,
    )
]
