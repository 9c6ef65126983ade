"""Make acknowledged writes durable (`durable_puts`): bytes first, then names, by one flush for all threads that wait.

A disk completes some hundred flushes a second. `docs/decisions/0052-one-flush-for-many-puts.md`
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from headrace.overlay.syscalls import flush_file_system, write_back


class DurableWrites:
    """Flush for the threads of a process. directory: any directory on that file system that this process may write to.
    is_on: returns whether the methods do anything."""

    def __init__(self, directory: bytes, is_on: Callable[[], bool]) -> None:
        self._folder = directory
        self._is_on = is_on
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Reset the state in a child: threads that wait or flush belong to the parent."""
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._next: Future[None] | None = None

    def write_back(self, fd: int) -> None:
        """Write a file's bytes back before it gets its name, so that no power loss leaves the name with a part of them.
        Raises OSError."""
        if self._is_on():
            write_back(fd)

    def flush(self) -> None:
        """Make earlier changes of names and attributes durable, with all bytes that were written back. Blocks. If a
        flush fails, all threads that wait for it get its OSError. If a signal's handler raises in the thread that
        flushes, the others get InterruptedError."""
        if not self._is_on():
            return
        with self._lock:
            is_leader = self._next is None
            flush = self._next = self._next or Future()
        if is_leader:
            try:
                with self._flushing:
                    with self._lock:
                        self._next = None  # later callers wait for the next flush
                    self._run(flush)
            except BaseException:  # KeyboardInterrupt, which belongs to this thread alone
                self._give_up(flush)
                raise
        flush.result()

    def _run(self, flush: Future[None]) -> None:
        try:
            flush_folder(self._folder)
        except Exception as error:  # noqa: BLE001 - raised in all threads that wait
            flush.set_exception(error)
        else:
            flush.set_result(None)

    def _give_up(self, flush: Future[None]) -> None:
        """End a flush whose thread was interrupted. The threads that wait for it get an error, and later callers begin
        another flush."""
        with self._lock:
            if self._next is flush:
                self._next = None
        if not flush.done():
            flush.set_exception(InterruptedError(errno.EINTR, "the flush was interrupted"))


def flush_folder(directory: bytes | str) -> None:
    """Call `flush_file_system` for the file system of a directory."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush_file_system(fd)
    finally:
        os.close(fd)
