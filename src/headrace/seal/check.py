"""Decide whether an image is one that the writer makes, if nobody recorded its digest.

The check reads the entries, writes an image of them, and compares the two as it goes. So an image that passes is right
in every bit, and no list of rules can be incomplete. Time and memory are at most those of reading and writing the
image: every entry of a hostile image must be followed by the bytes that the writer makes of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from headrace.base.errors import InvalidImageError
from headrace.seal.digest import digest_image
from headrace.seal.output import NID_BYTES
from headrace.seal.reader import read_entries
from headrace.seal.writer import ImageWriter


def check_image(descriptor: int) -> str:
    """Return the digest of an image that the writer makes. Raises InvalidImageError if it would write another one. The
    image must not change meanwhile."""
    comparison = _Comparison(descriptor)
    writer = ImageWriter(comparison)
    writer.add(read_entries(descriptor))
    writer.finish()
    comparison.finish()
    return digest_image(descriptor)


class _Comparison:
    """Compares what is written with an image, and keeps nothing."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = 0

    def write(self, offset: int, data: bytes | bytearray, deferred: Collection[int] = ()) -> None:
        """Compare bytes, except deferred ones. Raises InvalidImageError."""
        image = bytearray(os.pread(self._descriptor, len(data), offset))
        for nid_offset in deferred:
            index = nid_offset - offset
            image[index : index + NID_BYTES] = data[index : index + NID_BYTES]
        if image != data:
            raise InvalidImageError(
                "an image", why=f"it differs from what its entries give, from {offset} on"
            )
        self._end = max(self._end, offset + len(data))

    def finish(self) -> None:
        """Refuse bytes behind those that were compared."""
        if os.fstat(self._descriptor).st_size != self._end:
            raise InvalidImageError("an image", why="something follows it")
