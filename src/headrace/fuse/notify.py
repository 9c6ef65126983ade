"""Tells the kernel what is no longer true, from a thread of its own.

Never from a thread that serves requests, nor from the client's: the kernel takes the directory's lock for a
notification, or a page's, and whoever holds it may be waiting for an answer of ours.
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


class Notifier:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="notify").start()

    def name_changed(self, parent: int, name: bytes) -> None:
        self._queue.put(codec.inval_entry(parent, name))

    def listing_changed(self, directory: int) -> None:
        """What the kernel keeps of a listing: a name that it never looked up does not drop it."""
        self._queue.put(codec.inval_inode(directory))

    def pages_changed(self, node: int) -> None:
        """Pages of a file: reads that begin after `flush` ask for them anew."""
        self._queue.put(codec.inval_inode(node))

    def flush(self) -> None:
        """The kernel has heard all that it was to be told before, on return, or takes very long."""
        reached = threading.Event()
        self._queue.put(reached)
        reached.wait(FLUSH_LIMIT_S)

    def resend(self) -> None:
        """The kernel sends again what a session that is gone had taken and not answered."""
        self._queue.put(codec.resend())

    def _run(self) -> None:
        while True:
            message = self._queue.get()
            if isinstance(message, threading.Event):
                message.set()
                continue
            try:
                os.write(self._fd, message)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENOTCONN):
                    log.warning("notification refused reason=%s", error)
