"""Name cache files: their paths below `files/` of a cache volume. Readers of the cache and images of seals use them.

Consecutive ids share a directory, so files that are read together are neighbours on the disk
(docs/decisions/0068-where-cache-files-lie.md).
"""

from __future__ import annotations

import re
from typing import Literal

LAYOUT: Literal[2] = 2
"""The number of this layout; images of seals depend on it. The first one spread ids by their low byte."""
TOGETHER_BITS = 8
"""A directory holds the files of two to this power consecutive ids."""

DIRECTORY_NAME = "%010x"
"""Formatted with id >> TOGETHER_BITS: the directory of a cache file."""
DATA_NAME = b"%010x/%012x"
"""Formatted with id >> TOGETHER_BITS and id: the cache file. A hit has no time to build a complete path."""

LAZY_DIRECTORY = b"lazy"
"""The directory in the layer of a lazy seal where the kernel finds what the cache lacks (`fuse/lazy_layer.py`)."""
_LAZY = re.compile(rb"[0-9a-f]{12}")


def data_name(id: int) -> bytes:
    return DATA_NAME % (id >> TOGETHER_BITS, id)


def lazy_name(id: int) -> bytes:
    """Return the path of a file in the layer of a lazy seal: no cache volume has such a directory."""
    return b"%s/%012x" % (LAZY_DIRECTORY, id)


def lazy_id(name: bytes) -> int | None:
    """Return the id that the last part of a lazy name has; None for any other name."""
    return int(name, 16) if _LAZY.fullmatch(name) else None


def folder_name(id: int) -> str:
    return DIRECTORY_NAME % (id >> TOGETHER_BITS)
