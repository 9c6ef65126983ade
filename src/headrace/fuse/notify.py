"""Invalidate what the kernel has cached, from a separate thread.

Neither a thread that serves requests nor the client's thread may do this. For a notification the kernel takes the
directory's lock, or a page's, and the owner of that lock may be waiting for a reply of this session.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading

from headrace.fuse import codec

log = logging.getLogger(__name__)

FLUSH_LIMIT_S = 10.0
"""Most seconds that `flush` waits."""


class Notifier:
    """Queues notifications to the kernel, and writes them in order, but for `resend`. No call but `flush` blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="notify").start()

    def name_changed(self, parent: int, name: bytes, *, expire: bool = False) -> None:
        """Drop a name. expire: have it looked up again instead, because a mount lies at it or below."""
        self._queue.put(codec.inval_entry(parent, name, expire=expire))

    def listing_changed(self, directory: int) -> None:
        """Drop the cached listing of a directory, which `name_changed` keeps for a name that was never looked up."""
        self._queue.put(codec.inval_inode(directory))

    def pages_changed(self, node: int) -> None:
        """Drop the cached pages of a file: reads that begin after `flush` request them again."""
        self._queue.put(codec.inval_inode(node))

    def flush(self) -> None:
        """Block until the kernel has all notifications queued before, for at most `FLUSH_LIMIT_S`."""
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait(FLUSH_LIMIT_S)

    def resend(self) -> None:
        """Have the kernel resend all requests that were read and are not answered. Call it before the first read: that
        request would be resent, too. The kernel has chosen them when this returns, and waits for no other call."""
        self._write(codec.resend())

    def _run(self) -> None:
        while True:
            message = self._queue.get()
            if isinstance(message, threading.Event):
                message.set()
            else:
                self._write(message)

    def _write(self, message: bytes) -> None:
        try:
            os.write(self._fd, message)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENOTCONN):
                log.warning("the kernel refused a notification reason=%s", error)
