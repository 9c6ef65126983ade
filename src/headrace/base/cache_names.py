"""Name cache files: their paths below `files/` of a cache volume. Readers of the cache and images of seals use them.

Consecutive ids share a directory, so files that are read together are neighbours on the disk
(docs/decisions/0068-where-cache-files-lie.md).
"""

from __future__ import annotations

from typing import Literal

LAYOUT: Literal[2] = 2
"""The number of this layout; images of seals depend on it. The first one spread ids by their low byte."""
TOGETHER_BITS = 8
"""A directory holds the files of two to this power consecutive ids."""

FOLDER_NAME = "%010x"
"""Formatted with id >> TOGETHER_BITS: the directory of a cache file."""
DATA_NAME = b"%010x/%012x"
"""Formatted with id >> TOGETHER_BITS and id: the cache file. A hit has no time to build a complete path."""


def data_name(id: int) -> bytes:
    return DATA_NAME % (id >> TOGETHER_BITS, id)


def folder_name(id: int) -> str:
    return FOLDER_NAME % (id >> TOGETHER_BITS)
