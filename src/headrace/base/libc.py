"""The C library, for calls that Python's os lacks. It is loaded at its first use: a program that only reads needs none
of it, and ctypes takes a twentieth of the time of `import headrace`."""

from __future__ import annotations

import functools
from typing import Any

AT_EMPTY_PATH = 0x1000
"""Flag of calls that take a path: an empty one means the descriptor itself."""


@functools.cache
def c_library() -> Any:
    """Return the library. It keeps errno for `last_errno`."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    number, text, size = ctypes.c_int, ctypes.c_char_p, ctypes.c_int64
    library.fallocate.argtypes = [number, number, size, size]
    library.syncfs.argtypes = [number]
    library.fstatfs.argtypes = [number, ctypes.c_void_p]
    library.sync_file_range.argtypes = [number, size, size, ctypes.c_uint]
    library.mount.argtypes = [text, text, text, ctypes.c_ulong, text]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number]
    if hasattr(library, "name_to_handle_at"):
        pointer = ctypes.c_void_p
        library.name_to_handle_at.argtypes = [number, text, pointer, pointer, number]
    if hasattr(library, "statx"):
        library.statx.argtypes = [number, text, number, ctypes.c_uint, ctypes.c_void_p]
    if hasattr(library, "renameat2"):
        library.renameat2.argtypes = [number, text, number, text, ctypes.c_uint]
    return library


def last_errno() -> int:
    """Return the errno of this thread's last failed call."""
    import ctypes

    return ctypes.get_errno()


def address_of(view: memoryview) -> int:
    """Return the address of a writable view."""
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@functools.cache
def c_struct(*numbers: int) -> tuple[Any, int]:
    """Return a struct of 64-bit numbers, which callers must not change, and its size."""
    import ctypes

    struct = (ctypes.c_uint64 * len(numbers))(*numbers)
    return struct, ctypes.sizeof(struct)
