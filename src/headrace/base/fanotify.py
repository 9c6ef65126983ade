"""Learn of changes of names and files on a file system, whoever makes them (fanotify(7), Linux 5.9). It needs root.

An event names a directory by its file handle, and the entry in it. A handle leads to the directory wherever it was
moved since. The authority is fanotify_init(2), fanotify_mark(2), open_by_handle_at(2), and the kernel's
include/uapi/linux/fanotify.h.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from headrace.base.libc import c_library, last_errno

CLOSE_WRITE, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x8, 0x4, 0x40, 0x80, 0x100, 0x200
ON_DIRECTORY = 0x40000000
CHANGES = CLOSE_WRITE | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | ON_DIRECTORY
_OVERFLOW = 0x4000
_CLOEXEC, _NONBLOCK, _REPORT_DIRECTORY_AND_NAME = 0x1, 0x2, 0xC00
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_DIRECTORY_AND_NAME = 2
_VERSION = 3
_EVENT = struct.Struct("=IBBHQii")
"""struct fanotify_event_metadata: length, version, reserved, length of the metadata, mask, descriptor, pid."""
_INFO = struct.Struct("=BBH")
"""struct fanotify_event_info_header: type, padding, length."""
_FSID_BYTES = 8
_HANDLE = struct.Struct("=Ii")
"""The head of struct file_handle: the bytes of the handle, its type."""
READ_BYTES = 256 << 10


class FileEvent(NamedTuple):
    """A change. mask: of the bits above. handle: of the directory, a struct file_handle. name: of the entry; b"." is
    the directory itself. pid: of the process that made the change."""

    mask: int
    handle: bytes
    name: bytes
    pid: int


class EventsLostError(Exception):
    """The kernel dropped events, as its queue was full."""


class ChangeEvents:
    """The events of a whole file system since this was created. directory: a descriptor of any directory there, not
    O_PATH. Raises OSError if this kernel or file system reports none, or without root."""

    def __init__(self, directory: int) -> None:
        self.fd = _checked(
            c_library().fanotify_init(_CLOEXEC | _NONBLOCK | _REPORT_DIRECTORY_AND_NAME, os.O_RDONLY)
        )
        try:
            import ctypes

            mask = ctypes.c_uint64(CHANGES)
            _checked(c_library().fanotify_mark(self.fd, _MARK_ADD | _MARK_FILESYSTEM, mask, directory, None))
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def read(self) -> list[FileEvent]:
        """Return some of the events that wait; none: no more. Raises EventsLostError."""
        try:
            return list(decode_events(os.read(self.fd, READ_BYTES)))
        except BlockingIOError:
            return []


def decode_events(data: bytes) -> Iterator[FileEvent]:
    """Decode what a read returns. Events of other kinds are skipped. Raises EventsLostError or ValueError for anything
    else."""
    start = 0
    while start < len(data):
        if len(data) - start < _EVENT.size:
            raise ValueError("an event is cut off")
        length, version, _, head_bytes, mask, _, pid = _EVENT.unpack_from(data, start)
        if version != _VERSION or not _EVENT.size <= head_bytes <= length <= len(data) - start:
            raise ValueError("this is no event of fanotify")
        if mask & _OVERFLOW:
            raise EventsLostError
        entry = _entry_of(data[start + head_bytes : start + length])
        if entry is not None:
            yield FileEvent(mask, *entry, pid)
        start += length


def _entry_of(records: bytes) -> tuple[bytes, bytes] | None:
    """Return the handle and the name that the records of an event have."""
    start = 0
    while start + _INFO.size <= len(records):
        kind, _, length = _INFO.unpack_from(records, start)
        handle = start + _INFO.size + _FSID_BYTES
        if length < _INFO.size or start + length > len(records):
            raise ValueError("a record of an event is cut off")
        if kind == _DIRECTORY_AND_NAME and handle + _HANDLE.size <= start + length:
            end = handle + _HANDLE.size + int(_HANDLE.unpack_from(records, handle)[0])
            if end >= start + length:
                raise ValueError("a handle is cut off")
            return records[handle:end], records[end : start + length].split(b"\0", 1)[0]
        start += length
    return None


def open_handle(mount: int, handle: bytes) -> int | None:
    """Open a directory by its handle (O_PATH); None if it is gone. mount: a descriptor on its file system, not
    O_PATH. The caller closes it."""
    fd = c_library().open_by_handle_at(
        mount, handle, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    )
    return None if fd < 0 else int(fd)


def path_of_handle(mount: int, handle: bytes) -> bytes | None:
    """Return the present path of a directory; None if it was removed."""
    fd = open_handle(mount, handle)
    if fd is None:
        return None
    try:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_nlink:
                return os.readlink(b"/proc/self/fd/%d" % fd)
        return None
    finally:
        os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))
    return result
