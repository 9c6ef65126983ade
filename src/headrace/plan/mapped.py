"""Tables of numbers in mapped memory: it is 0 without being written, and takes space only where it is used."""

from __future__ import annotations

import mmap


def mapped_numbers(count: int) -> memoryview[int]:
    """Return memory for numbers of 4 bytes, all 0. It leaves the process when it is dropped."""
    memory = mmap.mmap(-1, max(1, count) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(memory).cast("B").cast("I")
