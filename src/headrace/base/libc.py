"""The C library, for what Python's os lacks. Loaded when it is first wanted: a program that only reads needs none
of it, and ctypes is a twentieth of what `import headrace` costs."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def c_library() -> Any:
    """errno is kept: `last_errno`."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    number, text, size = ctypes.c_int, ctypes.c_char_p, ctypes.c_int64
    library.fallocate.argtypes = [number, number, size, size]
    library.syncfs.argtypes = [number]
    library.fstatfs.argtypes = [number, ctypes.c_void_p]
    library.sync_file_range.argtypes = [number, size, size, ctypes.c_uint]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number]
    if hasattr(library, "renameat2"):
        library.renameat2.argtypes = [number, text, number, text, ctypes.c_uint]
    return library


def last_errno() -> int:
    """Of the last call of this thread that failed."""
    import ctypes

    return ctypes.get_errno()


def address_of(view: memoryview) -> int:
    """view: writable."""
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@functools.cache
def c_struct(*numbers: int) -> tuple[Any, int]:
    """A struct of 64-bit numbers, to be passed on and not changed, and its size."""
    import ctypes

    made = (ctypes.c_uint64 * len(numbers))(*numbers)
    return made, ctypes.sizeof(made)
