"""Map a page of memory that the node and all sessions of a host share, from a file beside the layer.

Others read it at any time, without a lock. So it consists of words, each of which is stored and read as a whole.
Struct.pack_into would clear the bytes first, and store them one by one.
"""

from __future__ import annotations

import mmap
import os

_BYTES = 4096


def shared_page(path: str) -> memoryview:
    """Return the page's words of 8 bytes, all zeros if the file is new. The caller releases it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _BYTES)  # on a full disk a store to a hole would raise SIGBUS
        return memoryview(mmap.mmap(fd, _BYTES)).cast("Q")
    finally:
        os.close(fd)
