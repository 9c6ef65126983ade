"""Send replies to READ from a cache file by splice: file → pipe → /dev/fuse.

The pipe holds references to the file's pages, so the bytes are copied once, into the reader's pages; pread and writev
would copy them twice (docs/decisions/0003). Each thread has one pipe. A user with too many pipes of that size gets
copies.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading

from headrace.fuse import abi

log = logging.getLogger(__name__)

_PIPE_BYTES = abi.READ_BYTES_MAX + abi.PAGE_BYTES  # a slot a page, and one for the header


class FileReplies:
    """Sends ranges of files as replies to READ on one /dev/fuse. Thread-safe."""

    def __init__(self, fuse_fd: int) -> None:
        self._fuse_fd = fuse_fd
        self._own = threading.local()

    def send(self, unique: int, fd: int, offset: int, count: int) -> int | None:
        """Reply with `count` bytes of the file from `offset`. Return None when the reply is sent, else the errno to
        reply with. Blocks on the disk where the bytes are not in memory."""
        header = abi.OUT_HEADER.pack(16 + count, 0, unique)
        try:
            pipe = self._pipe()
            is_filled = _fill_pipe(pipe[1], header, fd, offset, count) if pipe else False
            if pipe and is_filled:
                self._deliver(pipe[0], 16 + count)
                return None
            data = b"" if pipe else os.pread(fd, count, offset)
        except OSError as error:
            self._drop_pipe()
            log.error("a cache file cannot be read reason=%s", error)
            return error.errno or errno.EIO
        if len(data) != count:
            self._drop_pipe()
            log.error("a cache file is too short expected_bytes=%d offset=%d", count, offset)
            return errno.EIO
        self._copy(header, data)
        return None

    def _deliver(self, pipe_end: int, count: int) -> None:
        try:
            os.splice(pipe_end, self._fuse_fd, count)
        except OSError as error:
            self._drop_pipe()  # bytes left in the pipe must not precede the next reply
            _log_unless_gone(error)

    def _copy(self, header: bytes, data: bytes) -> None:
        try:
            os.writev(self._fuse_fd, [header, data])
        except OSError as error:
            _log_unless_gone(error)

    def _pipe(self) -> tuple[int, int] | None:
        pipe: tuple[int, int] | None = getattr(self._own, "pipe", None)
        if pipe is None and not getattr(self._own, "refused", False):
            self._own.pipe = pipe = os.pipe2(os.O_CLOEXEC)
            try:
                fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except PermissionError:
                log.info("no pipe for splice, reads are copied instead")
                self._drop_pipe()
                self._own.refused = True
                return None
        return pipe

    def _drop_pipe(self) -> None:
        for end in getattr(self._own, "pipe", None) or ():
            os.close(end)
        self._own.pipe = None


def _fill_pipe(end: int, header: bytes, fd: int, offset: int, count: int) -> bool:
    """Fill the pipe with the header and the bytes. Return False when the file ends before."""
    os.write(end, header)
    remaining = count
    while remaining:
        moved = os.splice(fd, end, remaining, offset_src=offset + count - remaining)
        if moved == 0:
            return False
        remaining -= moved
    return True


def _log_unless_gone(error: OSError) -> None:
    """Log a refused reply, unless the caller or the mount has ended, which is no failure."""
    if error.errno not in (errno.ENOENT, errno.ENODEV):
        log.error("the kernel refused a reply reason=%s", error)
