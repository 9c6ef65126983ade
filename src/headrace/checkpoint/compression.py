"""Compress chunks by zstd, with bytes of equal significance grouped first, and measure by a sample whether it is
faster.

Codec 0 stores the bytes unchanged. Codec n ≥ 1 is zstd of the bytes shuffled by items of n bytes (1: not shuffled). The
exponents of floats compress when they are adjacent, but not between mantissas.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.base.errors import CorruptCheckpointError
from headrace.base.missing_extras import needs_extra
from headrace.checkpoint.memory import Bytes

LEVEL = 1
"""Level of zstd: a fast one."""
SAMPLE_BYTES = 1 << 20
"""Bytes that a measurement compresses."""
RATIO_MAX = 0.9
"""Highest ratio at which a chunk is compressed. A saving of less than a tenth never outweighs the decompression at the
restore."""
_local = threading.local()


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold a measurement. ratio: compressed over original size. bytes_s: original bytes per second of one thread."""

    ratio: float
    bytes_s: float


def pays(sample: Sample, *, write_bytes_s: float, threads: int) -> bool:
    """Return whether compressing and writing less is at least as fast as writing all."""
    if sample.ratio > RATIO_MAX:
        return False
    return min(sample.bytes_s * threads, write_bytes_s / sample.ratio) >= write_bytes_s


def measure(chunk: Bytes, item_bytes: int) -> Sample:
    """Compress the first SAMPLE_BYTES of a chunk and measure it. Takes some milliseconds."""
    sample = chunk[:SAMPLE_BYTES]
    start_s = time.perf_counter()
    packed = compress(sample, item_bytes)
    took_s = max(time.perf_counter() - start_s, 1e-9)
    return Sample(len(packed) / max(len(sample), 1), len(sample) / took_s)


def compress(chunk: Bytes, item_bytes: int) -> bytes:
    """Return the compressed bytes of a chunk, shuffled by items of that size."""
    tool = getattr(_local, "compressor", None)
    if tool is None:
        tool = _local.compressor = _zstandard().ZstdCompressor(level=LEVEL)
    packed: bytes = tool.compress(shuffle(chunk, item_bytes).data)
    return packed


def decompress(packed: memoryview, target: Bytes, item_bytes: int, name: str) -> None:
    """Decompress into `target`. Raises CorruptCheckpointError if the bytes are not a compressed chunk of its size."""
    zstandard = _zstandard()
    tool = getattr(_local, "decompressor", None)
    if tool is None:
        tool = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        declared_bytes = zstandard.frame_content_size(packed)
        # zstd allocates the declared size, whatever max_output_size is: a bomb
        if declared_bytes not in (len(target), -1):
            raise CorruptCheckpointError(
                name, why=f"it decompresses to {declared_bytes} bytes instead of {len(target)}"
            )
        plain = tool.decompress(packed, max_output_size=len(target))
    except zstandard.ZstdError as error:
        raise CorruptCheckpointError(name, why=str(error)) from None
    if len(plain) != len(target):
        raise CorruptCheckpointError(
            name, why=f"it decompresses to {len(plain)} bytes instead of {len(target)}"
        )
    unshuffle(np.frombuffer(plain, np.uint8), target, item_bytes)


def shuffle(chunk: Bytes, item_bytes: int) -> Bytes:
    """Return the first bytes of all items, then the second bytes, …; bytes after the last complete item stay at the
    end."""
    if item_bytes <= 1:
        return np.ascontiguousarray(chunk)
    items_bytes = len(chunk) // item_bytes * item_bytes
    shuffled = np.empty(len(chunk), np.uint8)
    planes = shuffled[:items_bytes].reshape(item_bytes, -1)
    np.copyto(planes, chunk[:items_bytes].reshape(-1, item_bytes).T)
    shuffled[items_bytes:] = chunk[items_bytes:]
    return shuffled


def unshuffle(shuffled: Bytes, target: Bytes, item_bytes: int) -> None:
    """Write the bytes in their original order into `target`."""
    if item_bytes <= 1:
        target[:] = shuffled
        return
    items_bytes = len(target) // item_bytes * item_bytes
    np.copyto(target[:items_bytes].reshape(-1, item_bytes), shuffled[:items_bytes].reshape(item_bytes, -1).T)
    target[items_bytes:] = shuffled[items_bytes:]


def _zstandard() -> Any:
    with needs_extra("compression"):
        import zstandard
    return zstandard
