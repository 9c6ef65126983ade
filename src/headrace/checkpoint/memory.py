"""Memory that begins at a page, so that the disk can reach it directly, in huge pages where there are some."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_MADV_POPULATE_WRITE = (
    23  # include/uapi/asm-generic/mman-common.h, since Linux 5.14; Python names it from 3.14 on
)
SMALL_BYTES = 1 << 20


def page_aligned(size_bytes: int) -> Bytes:
    """Zeros. The memory goes back when the last array over it does. Touched page by page as it is used."""
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
    """Whether its pages are its own, so that others can be mapped in their place. memory: of `page_aligned`."""
    return isinstance(_base_of(memory), mmap.mmap)


def _base_of(memory: Bytes) -> object:
    """What holds the memory: numpy keeps a memoryview of it."""
    base: object = memory.base
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base


def touch(memory: Bytes) -> None:
    """Every page of it is there on return; writing to it costs no fault afterwards."""
    base = _base_of(memory)
    if isinstance(base, mmap.mmap):
        try:
            base.madvise(_MADV_POPULATE_WRITE)
            return
        except OSError:
            pass
    memory[:: mmap.PAGESIZE] = 0
