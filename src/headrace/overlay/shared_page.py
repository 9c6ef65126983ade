"""A page of memory that the node and all sessions of a host share: a file beside the layer, mapped."""

from __future__ import annotations

import mmap
import os

_BYTES = 4096


def shared_page(path: str) -> mmap.mmap:
    """All zeros where there was no such file. The caller closes it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _BYTES)  # a store to a hole of a full disk would be SIGBUS
        return mmap.mmap(fd, _BYTES)
    finally:
        os.close(fd)
