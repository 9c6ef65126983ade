"""Write all bytes of a buffer. One pwrite(2) writes only a part of them when the disk becomes full meanwhile; the next
one then fails."""

from __future__ import annotations

import os

Body = bytes | bytearray | memoryview


def pwrite_all(fd: int, body: Body, offset: int) -> None:
    """Write all bytes at an offset. Raises OSError."""
    written = os.pwrite(fd, body, offset)
    if written == len(body):
        return
    rest = memoryview(body)
    while written < len(rest):
        written += os.pwrite(fd, rest[written:], offset + written)
