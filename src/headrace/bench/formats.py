"""Write and read files as the workloads' programs do: npz, tfrecord, JPEG, and a plain file of tokens.

Their bytes are random, so no storage can compress or deduplicate them. A reader reads and checks everything that a real
one does: zipfile checks the CRC-32 of an npz member, a tfrecord reader the checksums of each record. Nothing is
decoded, because that costs the same with any storage.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import IO, Any

import google_crc32c
import numpy as np

CRC_MASK = 0xA282EAD8
"""Constant of masked checksums: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details"""
RECORD_HEAD, RECORD_TAIL = 12, 4
CHUNK_BYTES = 4 << 20
COMMENT_BYTES_MAX = 65_533
"""Largest comment of a JPEG segment: its length has 16 bits and includes itself."""
_TINY_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0oOjM9PDkzODdASFxOQERXRTc4UG1RV19i"
    "Z2hnPk1xeXBkeFxlZ2P/wAALCAAIAAgBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAAP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAI"
    "AQEAAD8AP//Z"
)
"""A JPEG of 8 x 8 grey pixels."""


class BrokenRecordError(ValueError):
    """Report bytes that differ from those that were written."""


def write_npz(out: IO[bytes], size_bytes: int, random: np.random.Generator) -> None:
    """Write an array `x` of about that size, and labels `y`, as DLIO's generator does."""
    np.savez(out, x=random.integers(0, 256, (max(1, size_bytes), 1), dtype=np.uint8), y=np.zeros(1, np.int64))


def read_npz(source: IO[bytes] | str) -> int:
    """Return the bytes of the array. Raises BrokenRecordError, or the errors of numpy and zipfile."""
    with np.load(source) as loaded:
        size: int = loaded["x"].nbytes
        return size


def write_tfrecord(out: IO[bytes], sizes: list[int], random: np.random.Generator) -> None:
    """Write records that are tf.train.Examples of `image` and `size`, as DLIO's generator does."""
    for size in sizes:
        out.write(record(example(random.bytes(size))))


def record(payload: bytes) -> bytes:
    """Return a tfrecord: length, its checksum, the payload, its checksum."""
    length = struct.pack("<Q", len(payload))
    return b"".join((length, struct.pack("<I", masked(length)), payload, struct.pack("<I", masked(payload))))


def masked(body: bytes) -> int:
    checksum = google_crc32c.value(body)
    rotated: int = ((checksum >> 15) | (checksum << 17)) & 0xFFFFFFFF
    return (rotated + CRC_MASK) & 0xFFFFFFFF


def example(image: bytes) -> bytes:
    """Encode tf.train.Example {image: bytes, size: int64} by protobuf:
    https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto"""
    entries = (
        _field(1, b"image") + _field(2, _field(1, _field(1, image))),  # Feature.bytes_list.value
        _field(1, b"size")
        + _field(2, _field(3, _field(1, _varint(len(image))))),  # Feature.int64_list.value, packed
    )
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def records(source: IO[bytes]) -> Iterator[bytes]:
    """Yield the payloads, each checked as TensorFlow's reader does. Raises BrokenRecordError."""
    while head := _read_exactly(source, RECORD_HEAD):
        length, checksum = struct.unpack("<QI", head)
        if masked(head[:8]) != checksum:
            raise BrokenRecordError("the checksum of a record's length is wrong")
        body = _read_exactly(source, length + RECORD_TAIL)
        if len(body) < length + RECORD_TAIL or masked(body[:length]) != struct.unpack("<I", body[length:])[0]:
            raise BrokenRecordError("the checksum of a record is wrong")
        yield body[:length]


def write_jpeg(out: IO[bytes], size_bytes: int, random: np.random.Generator) -> None:
    """Write a JPEG of that size, or larger if it is tiny: a small picture, padded with comment segments."""
    parts, remaining = [_TINY_JPEG[:2]], size_bytes - len(_TINY_JPEG)
    while remaining > 4:
        length = min(remaining - 2, COMMENT_BYTES_MAX + 2)
        parts += [b"\xff\xfe", struct.pack(">H", length), random.bytes(length - 2)]
        remaining -= length + 2
    parts.append(_TINY_JPEG[2:])
    out.write(b"".join(parts))


def write_tokens(out: IO[bytes], size_bytes: int, random: np.random.Generator) -> None:
    for start in range(0, size_bytes, CHUNK_BYTES):
        out.write(random.bytes(min(CHUNK_BYTES, size_bytes - start)))


def write(out: IO[bytes], format: str, sizes: list[int], random: np.random.Generator) -> None:
    """Write a file. sizes: of the samples; only tfrecords have more than one."""
    if format == "tfrecord":
        write_tfrecord(out, sizes, random)
    else:
        write_file: Any = {"npz": write_npz, "jpeg": write_jpeg, "tokens": write_tokens}[format]
        write_file(out, sizes[0], random)


def _read_exactly(source: IO[bytes], size: int) -> bytes:
    """Read that many bytes; fewer only at the end of the file."""
    body = source.read(size)
    while body and len(body) < size:
        more = source.read(size - len(body))
        if not more:
            break
        body += more
    return body


def _field(number: int, body: bytes) -> bytes:
    """Encode a length-delimited field."""
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
