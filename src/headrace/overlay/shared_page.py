"""Map a page of memory that the node and all sessions of a host share, from a file beside the layer."""

from __future__ import annotations

import mmap
import os

_BYTES = 4096


def shared_page(path: str) -> mmap.mmap:
    """Return the page, all zeros if the file is new. The caller closes it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _BYTES)  # on a full disk a store to a hole would raise SIGBUS
        return mmap.mmap(fd, _BYTES)
    finally:
        os.close(fd)
