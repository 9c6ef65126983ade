"""Call name_to_handle_at(2), which Python's os lacks."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable

from headrace.base.libc import AT_EMPTY_PATH, address_of, c_library

_AT_HANDLE_FID = 0x200  # Linux 6.5
_HANDLE_BYTES, _HEAD_BYTES, _MOUNT_BYTES = 136, 8, 8
_ROOM = (_HANDLE_BYTES - _HEAD_BYTES).to_bytes(4, sys.byteorder)
_threads = threading.local()


def file_handle(fd: int) -> bytes:
    """Return what identifies an open file: a later file of its inode number has another handle. b"" if the file system
    has none. Some have only such that open no file, such as overlayfs since Linux 6.5."""
    call = _call()
    if call is None:
        return b""
    try:
        handle, place = _threads.memory
    except AttributeError:  # new memory for each call would take longer than the call
        handle = bytearray(_HANDLE_BYTES + _MOUNT_BYTES)
        place = address_of(memoryview(handle))
        _threads.memory = handle, place
    for flags in (AT_EMPTY_PATH, AT_EMPTY_PATH | _AT_HANDLE_FID):
        handle[:4] = _ROOM
        if call(fd, b"", place, place + _HANDLE_BYTES, flags) == 0:
            return bytes(handle[: _HEAD_BYTES + int.from_bytes(handle[:4], sys.byteorder)])
    return b""


@functools.cache
def _call() -> Callable[..., int] | None:
    return getattr(c_library(), "name_to_handle_at", None)
