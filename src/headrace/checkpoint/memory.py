"""Allocate memory aligned to pages, so that the disk can transfer to it directly. It is in huge pages if the kernel has
them."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_MADV_POPULATE_WRITE = 23  # include/uapi/asm-generic/mman-common.h, Linux 5.14; Python names it since 3.14
SMALL_BYTES = 1 << 20
"""Size from which memory is a mapping of its own."""


def page_aligned(size_bytes: int) -> Bytes:
    """Return zeroed memory. It is freed with the last array over it; pages are allocated on first use."""
    if size_bytes < SMALL_BYTES:
        spare = np.empty(size_bytes + mmap.PAGESIZE, np.uint8)
        skip = -spare.ctypes.data % mmap.PAGESIZE
        return spare[skip : skip + size_bytes]
    mapped = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them
        pass
    return np.frombuffer(mapped, np.uint8)


def is_own_mapping(memory: Bytes) -> bool:
    """Return whether the memory, from `page_aligned`, is a mapping, so that other pages may replace its pages."""
    return isinstance(_base_of(memory), mmap.mmap)


def _base_of(memory: Bytes) -> object:
    """Return the owner of the memory: numpy keeps a memoryview of it."""
    base: object = memory.base
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base


def touch(memory: Bytes) -> None:
    """Allocate every page now, so that later writes cause no page faults."""
    base = _base_of(memory)
    if isinstance(base, mmap.mmap):
        try:
            base.madvise(_MADV_POPULATE_WRITE)
            return
        except OSError:
            pass
    memory[:: mmap.PAGESIZE] = 0
