"""Opens files for a program that has no mount: files to read, and files that are being written.

A `Content` is the bytes of one file as they are now. It has a descriptor of a cache file, or of a file of the upper
layer. Where a cache file is still being filled, a read waits for the blocks. `ReadStream` and `WriteStream` are
Python's own buffered files over them.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.cancel import Cancel
from headrace.base.errors import NotSupportedError, OriginError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.client.file import OpenFile
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import is_whiteout
from headrace.overlay.syscalls import seen_at_rest

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STEP_BYTES = 8 * BLOCK_SIZE_BYTES
"""Bytes that a read of an incomplete file waits for at once."""
COPY_STEP_BYTES = 16 << 20
WRITE_BUFFER_BYTES = 1 << 18
_ANY_BYTE = (bytearray(1),)
"""Nothing reads it, so threads may share it."""
_NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def read_range(fd: int, start: int, end: int, *, grows: bool = False) -> bytes:
    """Read bytes start..end, all of which are in the file. grows: the file may be shorter by now; otherwise that is
    an OriginError."""
    if end <= start:
        return b""
    data = os.pread(fd, end - start, start)
    if len(data) == end - start:
        return data
    parts = [data]  # one read of the kernel ends at 2 GiB
    while data and (start := start + len(data)) < end:
        data = os.pread(fd, end - start, start)
        parts.append(data)
    if not data and not grows:
        raise OriginError("cache file", why=f"it ends at byte {start}, not at {end}")
    return b"".join(parts)


def in_memory(fd: int, size_bytes: int) -> bool:
    """Return whether a read most likely does not wait: the file's last byte is in the page cache."""
    try:
        return size_bytes == 0 or os.preadv(fd, _ANY_BYTE, size_bytes - 1, os.RWF_NOWAIT) == 1
    except OSError:
        return False


class Content:
    """Reads one file, which the caller closes. Exactly one is given: fd has all bytes, file has those that may have
    to be waited for. grows: a file of the upper layer, which may have a writer; otherwise the size is the origin's.
    check: called when bytes of `file` have arrived; what it raises is raised instead of returning them. cancel: ends
    the waits of other calls, which raise CancelledByUserError."""

    def __init__(
        self,
        size_bytes: int,
        *,
        fd: int = -1,
        file: OpenFile | None = None,
        grows: bool = False,
        check: Callable[[OpenFile], None] | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        self.size_bytes = size_bytes
        self.file = file
        self.fd = fd
        self._grows = grows
        self._described: os.stat_result | None = None
        self._check = check
        self.cancel = cancel

    @property
    def may_change(self) -> bool:
        """Return whether a writer may change the bytes in place: `fd` is a file of the upper layer."""
        return self._grows

    @property
    def is_versioned(self) -> bool:
        """Return whether `stat_at_rest` described a version of a file that a writer may change in place."""
        return self._described is not None

    @classmethod
    def of_upper(cls, fd: int, path: bytes) -> Content:
        """Return the content of an open file of the upper layer, which owns the descriptor. Raises NotSupportedError if
        it is not a regular file; then the descriptor is closed. path: for the error."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or (MARKS.single_owner and is_whiteout(status)):
            os.close(fd)
            raise NotSupportedError(
                os.fsdecode(path), why="it is not a regular file", hint="read it through a mount"
            )
        return cls(status.st_size, fd=fd, grows=True)

    def stat_at_rest(self) -> os.stat_result:
        """Return the attributes of an open file of the upper layer after writes that run: another file may have its
        name by now. Its size becomes that of the content."""
        try:
            status = seen_at_rest(self.fd)
        except OSError:  # the disk can't read the first byte, but maybe those that are wanted
            status = os.fstat(self.fd)
        self.size_bytes = status.st_size
        self._described = status
        return status

    def check_unchanged(self) -> None:
        """Raise VersionChangedError if the file was written since `stat_at_rest`. A change of its names or attributes
        is no write."""
        before, now = self._described, os.fstat(self.fd)
        if before is not None and (now.st_mtime_ns, now.st_size) != (before.st_mtime_ns, before.st_size):
            raise VersionChangedError("file", why="it was written while it was read", hint="read it again")

    def wait(self, start: int, end: int) -> int:
        """Return a descriptor that has these bytes. OriginError and its kinds when they can't be fetched."""
        if self.file is None:
            return self.fd
        descriptor = self.file.wait(start, end, self.cancel)
        if self._check is None:
            return descriptor
        self._check(self.file)
        return self.file.wait(start, end, self.cancel)  # the check may have waited for other bytes

    def wait_whole(self, cancel: Cancel | None = None) -> int:
        """Return a descriptor that has all bytes. Raise CancelledByUserError."""
        if self.file is None:
            return self.fd
        descriptor = self.file.wait_whole(self.size_bytes, cancel)
        if self._check is not None:
            self._check(self.file)
        return descriptor

    def read(self, start: int, end: int) -> bytes:
        """Read bytes start..end, fewer where the file ends before. Blocks until the bytes are available."""
        end = min(end, self.size_bytes)
        if self.file is None:
            return read_range(self.fd, start, end, grows=self._grows)
        steps = ((offset, min(end, offset + STEP_BYTES)) for offset in range(start, end, STEP_BYTES))
        return b"".join(read_range(self.wait(*step), *step) for step in steps)

    def read_into(self, target: memoryview, start: int) -> int:
        """Return the number of bytes read, like readinto: 0 at the end of the file."""
        if self.file is None:
            return os.preadv(self.fd, [target], start)
        end = min(start + min(len(target), STEP_BYTES), self.size_bytes)
        if end <= start:
            return 0
        return os.preadv(self.wait(start, end), [target[: end - start]], start)

    def is_in_memory(self) -> bool:
        """Return whether a read most likely does not wait: the last byte is in the page cache."""
        return self.file is None and in_memory(self.fd, self.size_bytes)

    def read_now(self, start: int, end: int) -> bytearray | None:
        """Read these bytes if that does not wait. None: it would wait, or the file is shorter."""
        if self.file is not None:
            return None
        buffer = bytearray(end - start)
        try:
            return buffer if os.preadv(self.fd, [buffer], start, os.RWF_NOWAIT) == len(buffer) else None
        except OSError:
            return None

    def copy_to(self, target: int, on_copied: Callable[[int], object] = lambda _: None) -> None:
        """Copy all bytes, by the kernel, to the start of an empty file. on_copied gets the number of bytes of each
        step."""
        offset = 0
        while offset < self.size_bytes:
            end = min(self.size_bytes, offset + COPY_STEP_BYTES)
            source = self.wait(offset, end)
            while offset < end:
                copied = copy_range(source, offset, target, offset, end - offset)
                if copied == 0:
                    if self._grows:
                        return
                    raise OriginError("cache file", why=f"it ends at byte {offset}, not at {end}")
                offset += copied
                on_copied(copied)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        elif self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def copy_range(source: int, source_offset: int, target: int, target_offset: int, count: int) -> int:
    """Copy bytes between two files in the kernel, by reflink where the file system can. Return how many: at most
    `count`, 0 at the end of the source."""
    try:
        return os.copy_file_range(source, target, count, source_offset, target_offset)
    except OSError as error:
        if error.errno not in _NO_COPY:
            raise
    os.lseek(target, target_offset, os.SEEK_SET)
    return os.sendfile(target, source, source_offset, count)


class _Filling(io.RawIOBase):
    """Reads a file that may lack blocks. It exposes no descriptor, because the file has holes."""

    def __init__(self, content: Content, name: str) -> None:
        super().__init__()
        self.name = name
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._content.size_bytes}[whence]
        if begin + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: object) -> int:
        count = self._content.read_into(memoryview(buffer).cast("B"), self._at)  # type: ignore[arg-type]
        self._at += count
        return count

    def readall(self) -> bytes:
        data = self._content.read(self._at, self._content.size_bytes)
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._content.close()
        super().close()


class ReadStream(io.BufferedReader):
    """Reads a file. size: as of the open. `fileno` of a complete file is the cache file's."""

    def __init__(self, content: Content, name: str) -> None:
        self.size = content.size_bytes
        if content.fd >= 0:
            raw = io.FileIO(content.fd, "rb")
            raw.name = name
            super().__init__(raw)
        else:
            super().__init__(_Filling(content, name))


class _CountedFile(io.FileIO):
    """Counts the bytes that were written through it. `close` waits for calls of other threads. The owner of the
    descriptor closes it next, and its number may be another file's then."""

    written_bytes = 0

    def __init__(self, fd: int) -> None:
        self._in_use = threading.RLock()  # a signal's handler may close it within a call of its own thread
        self._process = os.getpid()
        super().__init__(fd, "wb", closefd=False)

    def write(self, data: ReadableBuffer, /) -> int:
        with self._in_use:
            count = super().write(data)
        self.written_bytes += count or 0
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        with self._in_use:
            return super().seek(offset, whence)

    def truncate(self, size: int | None = None, /) -> int:
        with self._in_use:
            return super().truncate(size)

    def close(self) -> None:
        if self._process != os.getpid():  # a thread that a forked child lacks may hold the lock
            super().close()
            return
        with self._in_use:
            super().close()


class WriteStream(io.BufferedWriter):
    """Writes to a descriptor, which it owns. finish is called once with the descriptor, when all bytes are in the
    file; `close` raises its errors. abandon is called instead, where the file is discarded. commits: False for a
    caller that calls `commit` or `discard` after `close`. is_broken_off: `close` calls it: whether an exception ended
    the writing that `__exit__` did not receive."""

    def __init__(
        self,
        fd: int,
        name: str,
        *,
        finish: Callable[[int], None],
        abandon: Callable[[int], None],
        commits: bool = True,
        is_broken_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file = _CountedFile(fd)
        self._file.name = name
        super().__init__(self._file, WRITE_BUFFER_BYTES)
        self._fd = fd
        self._finish, self._abandon = finish, abandon
        self._commits = commits
        self._process = os.getpid()
        self._is_broken_off = is_broken_off

    @property
    def written_bytes(self) -> int:
        """Return how many bytes this stream has written to the file."""
        return self._file.written_bytes

    def fileno(self) -> int:
        """Return the descriptor after a flush, because the caller means to sync the file."""
        self.flush()
        return super().fileno()

    def close(self) -> None:
        if self.closed:
            return
        if self._is_broken_off():
            self.discard()
            return
        try:
            super().close()
        except BaseException:
            self.discard()
            raise
        if self._commits:
            self.commit()

    def commit(self) -> None:
        """Give the file its name. Nothing happens in a forked child: the file is its parent's."""
        self._commits = True
        if self.closed:
            self._end(self._finish)
        else:
            self.close()

    def discard(self) -> None:
        """Close the file and discard its bytes. It waits for a write of another thread, such as one whose coroutine was
        cancelled."""
        self._commits = False
        self.raw.close()  # the bytes in the buffer are dropped
        self._end(self._abandon)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def _end(self, last: Callable[[int], None]) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if self._process == os.getpid():
                last(fd)
        finally:
            os.close(fd)
