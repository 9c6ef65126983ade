"""Compression of chunks: bytes of equal weight brought together, then zstd; and whether it pays, by a sample.

Codec 0 is the bytes as they are; codec n ≥ 1 is zstd of the bytes shuffled by items of n bytes (1: not shuffled).
Floats have their exponents in one byte: side by side those compress, between mantissas they don't.
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
SAMPLE_BYTES = 1 << 20
RATIO_MAX = 0.9
"""Less than a tenth saved is never worth the time of reading it back."""
_local = threading.local()


@dataclass(frozen=True, slots=True)
class Sample:
    """ratio: compressed over original. bytes_s: originals, of one thread."""

    ratio: float
    bytes_s: float


def pays(sample: Sample, *, write_bytes_s: float, threads: int) -> bool:
    """Compressing and writing less is not slower than writing all."""
    if sample.ratio > RATIO_MAX:
        return False
    return min(sample.bytes_s * threads, write_bytes_s / sample.ratio) >= write_bytes_s


def measure(chunk: Bytes, item_bytes: int) -> Sample:
    """Of the first SAMPLE_BYTES. Some milliseconds."""
    sample = chunk[:SAMPLE_BYTES]
    start_s = time.perf_counter()
    packed = compress(sample, item_bytes)
    took_s = max(time.perf_counter() - start_s, 1e-9)
    return Sample(len(packed) / max(len(sample), 1), len(sample) / took_s)


def compress(chunk: Bytes, item_bytes: int) -> bytes:
    tool = getattr(_local, "compressor", None)
    if tool is None:
        tool = _local.compressor = _zstandard().ZstdCompressor(level=LEVEL)
    packed: bytes = tool.compress(shuffle(chunk, item_bytes).data)
    return packed


def decompress(packed: memoryview, target: Bytes, item_bytes: int, name: str) -> None:
    """Fills `target`. CorruptCheckpointError when the bytes are not what was compressed."""
    zstandard = _zstandard()
    tool = getattr(_local, "decompressor", None)
    if tool is None:
        tool = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        told = zstandard.frame_content_size(packed)
        if told not in (len(target), -1):  # a bomb: so much would be allocated, whatever max_output_size says
            raise CorruptCheckpointError(name, why=f"{told} bytes, not {len(target)}, once decompressed")
        plain = tool.decompress(packed, max_output_size=len(target))
    except zstandard.ZstdError as error:
        raise CorruptCheckpointError(name, why=str(error)) from None
    if len(plain) != len(target):
        raise CorruptCheckpointError(name, why=f"{len(plain)} bytes, not {len(target)}, once decompressed")
    unshuffle(np.frombuffer(plain, np.uint8), target, item_bytes)


def shuffle(chunk: Bytes, item_bytes: int) -> Bytes:
    """First bytes of all items, then second ones, …; bytes beyond the last whole item stay at the end."""
    if item_bytes <= 1:
        return np.ascontiguousarray(chunk)
    whole = len(chunk) // item_bytes * item_bytes
    shuffled = np.empty(len(chunk), np.uint8)
    planes = shuffled[:whole].reshape(item_bytes, -1)
    np.copyto(planes, chunk[:whole].reshape(-1, item_bytes).T)
    shuffled[whole:] = chunk[whole:]
    return shuffled


def unshuffle(shuffled: Bytes, target: Bytes, item_bytes: int) -> None:
    if item_bytes <= 1:
        target[:] = shuffled
        return
    whole = len(target) // item_bytes * item_bytes
    np.copyto(target[:whole].reshape(-1, item_bytes), shuffled[:whole].reshape(item_bytes, -1).T)
    target[whole:] = shuffled[whole:]


def _zstandard() -> Any:
    with needs_extra("compression"):
        import zstandard
    return zstandard
