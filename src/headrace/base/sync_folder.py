"""Make names durable."""

from __future__ import annotations

import os


def sync_folder(path: str) -> None:
    """Make the names in a directory durable. Blocks for the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
