"""Take the bytes of an image in the order of their offsets, and a few of them again.

An image is written from its second block on without gaps; the first block comes last. The dirents ".." are deferred:
they are zero until the parent of their directory is placed.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

from headrace.seal.erofs import BLOCK_BYTES

_FLUSH_BYTES = 1 << 20
NID_BYTES = 8


class ImageSink(Protocol):
    """Takes the bytes of an image."""

    def write(self, offset: int, data: bytes | bytearray, deferred: Collection[int] = ()) -> None:
        """Write bytes at an offset. deferred: offsets of nids among them, which are written again later."""


class FileSink:
    """Writes an image to a file. Nothing is durable before its owner's fsync. Raises OSError."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, offset: int, data: bytes | bytearray, deferred: Collection[int] = ()) -> None:
        view = memoryview(data)
        while view:
            written_bytes = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written_bytes:], offset + written_bytes


class ImageOutput:
    """Buffers what an image gets, on its way to a sink."""

    def __init__(self, sink: ImageSink) -> None:
        self._sink = sink
        self._buffer = bytearray()
        self._buffer_offset = BLOCK_BYTES
        self._deferred: set[int] = set()

    @property
    def offset(self) -> int:
        """Return the offset of the next byte."""
        return self._buffer_offset + len(self._buffer)

    def append(self, data: bytes | bytearray) -> int:
        """Append bytes; return their offset."""
        offset = self._buffer_offset + len(self._buffer)
        self._buffer += data
        if len(self._buffer) >= _FLUSH_BYTES:
            self.flush()
        return offset

    def pad_to(self, offset: int) -> None:
        """Append zeros up to an offset."""
        self.append(bytes(offset - self.offset))

    def defer(self, offset: int) -> None:
        """Announce a nid that `set_nid` will set. It may be in bytes that are appended next."""
        self._deferred.add(offset)

    def set_nid(self, offset: int, nid: int) -> None:
        """Set a deferred nid."""
        data = nid.to_bytes(NID_BYTES, "little")
        index = offset - self._buffer_offset
        if index < 0:
            self._sink.write(offset, data)
        else:
            self._buffer[index : index + NID_BYTES] = data
            self._deferred.discard(offset)

    def flush(self) -> None:
        """Hand the buffer to the sink."""
        end = self.offset
        deferred = {offset for offset in self._deferred if offset < end}
        self._sink.write(self._buffer_offset, self._buffer, deferred)
        self._deferred -= deferred
        self._buffer, self._buffer_offset = bytearray(), end

    def finish(self, first_block: bytes | bytearray) -> None:
        """Write all that is left, and the first block."""
        self.flush()
        self._sink.write(0, first_block)
