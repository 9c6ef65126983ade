"""Compute the checksum of a file as HDFS does, so that Hadoop's clients (distcp) can compare files across both.

In HDFS each 512 bytes have a CRC32C, the CRCs of a block have an MD5, and the MD5s of all blocks have an MD5
(`FileChecksumHelper.makeMd5CrcResult`). Equal bytes have equal checksums with 128 MiB blocks, HDFS's default.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from headrace.vfs.streams import Content
from headrace.webhdfs.errors import unsupported
from headrace.webhdfs.file_status import BLOCK_BYTES

CRC_BYTES = 512
STEP_BYTES = 1 << 20
_PADDED_BYTES_MIN = 32
_EMPTY_MD5 = hashlib.md5(bytes(_PADDED_BYTES_MIN), usedforsecurity=False).digest()


def file_checksum(content: Content, *, block_bytes: int = BLOCK_BYTES) -> dict[str, Any]:
    """Read the whole file, at some 0.5 GB/s, and return its checksum. Raises RemoteError without the library for
    CRC32C."""
    if content.size_bytes == 0:
        return _row("MD5-of-0MD5-of-0CRC32", 0, 0, _EMPTY_MD5)
    sums = [
        _block_md5(content, start, min(content.size_bytes, start + block_bytes))
        for start in range(0, content.size_bytes, block_bytes)
    ]
    crcs_a_block = block_bytes // CRC_BYTES if len(sums) > 1 else 0
    joined = b"".join(sums)
    # HDFS hashes its whole buffer, which doubles from 32 bytes as it fills, not only the bytes in it.
    size = _PADDED_BYTES_MIN
    while size < len(joined):
        size *= 2
    md5 = hashlib.md5(joined.ljust(size, b"\0"), usedforsecurity=False).digest()
    return _row(f"MD5-of-{crcs_a_block}MD5-of-{CRC_BYTES}CRC32C", CRC_BYTES, crcs_a_block, md5)


def _block_md5(content: Content, start: int, end: int) -> bytes:
    try:
        from awscrt.checksums import crc32c
    except ImportError:
        raise unsupported("checksums need awscrt on this host: pip install 'headrace[webhdfs]'") from None
    md5 = hashlib.md5(usedforsecurity=False)
    for offset in range(start, end, STEP_BYTES):
        data = content.read(offset, min(end, offset + STEP_BYTES))
        crcs = [crc32c(data[begin : begin + CRC_BYTES]) for begin in range(0, len(data), CRC_BYTES)]
        md5.update(struct.pack(f">{len(crcs)}I", *crcs))
    return md5.digest()


def _row(algorithm: str, crc_bytes: int, crcs_a_block: int, md5: bytes) -> dict[str, Any]:
    value = struct.pack(">iq", crc_bytes, crcs_a_block) + md5
    return {"algorithm": algorithm, "bytes": value.hex(), "length": len(value)}
