"""The checksum of a file as HDFS makes it, so that Hadoop's clients (distcp) can compare a file here with one there.

HDFS: each 512 bytes have a CRC32C; of the CRCs of a block the MD5; of all blocks' MD5s the MD5
(`FileChecksumHelper.makeMd5CrcResult`). Equal for equal bytes where the block size there is 128 MiB, the default.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from headrace.sdk.streams import Content
from headrace.webhdfs.errors import unsupported
from headrace.webhdfs.file_status import BLOCK_BYTES

CRC_BYTES = 512
STEP_BYTES = 1 << 20
_PADDED_BYTES_MIN = 32
_EMPTY_MD5 = hashlib.md5(bytes(_PADDED_BYTES_MIN), usedforsecurity=False).digest()


def file_checksum(content: Content, *, block_bytes: int = BLOCK_BYTES) -> dict[str, Any]:
    """Reads all of it: some 0.5 GB/s. RemoteError where the library for CRC32C is not installed."""
    if content.size_bytes == 0:
        return _row("MD5-of-0MD5-of-0CRC32", 0, 0, _EMPTY_MD5)
    sums = [
        _block_md5(content, start, min(content.size_bytes, start + block_bytes))
        for start in range(0, content.size_bytes, block_bytes)
    ]
    crcs_a_block = block_bytes // CRC_BYTES if len(sums) > 1 else 0
    joined = b"".join(sums)
    # HDFS hashes its whole buffer, which doubles from 32 bytes as it fills, and not only what is in it.
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
    for at in range(start, end, STEP_BYTES):
        data = content.read(at, min(end, at + STEP_BYTES))
        crcs = [crc32c(data[one : one + CRC_BYTES]) for one in range(0, len(data), CRC_BYTES)]
        md5.update(struct.pack(f">{len(crcs)}I", *crcs))
    return md5.digest()


def _row(algorithm: str, crc_bytes: int, crcs_a_block: int, md5: bytes) -> dict[str, Any]:
    value = struct.pack(">iq", crc_bytes, crcs_a_block) + md5
    return {"algorithm": algorithm, "bytes": value.hex(), "length": len(value)}
