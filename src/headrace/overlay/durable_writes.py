"""What was acknowledged is on the disk (`durable_puts`): bytes first, then the names, by one flush for all who wait.

A disk does some hundred flushes a second. `docs/decisions/0052-one-flush-for-many-puts.md`
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from headrace.overlay.syscalls import flush_file_system, write_back


class DurableWrites:
    """Flushes for the threads of a process. folder: any on that file system that this process may write to. is_on:
    whether anything is done at all."""

    def __init__(self, folder: bytes, is_on: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_on = is_on
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a child: whoever waited, or flushed, is a thread of the parent's."""
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._next: Future[None] | None = None

    def write_back(self, fd: int) -> None:
        """Before a file gets its name: no power loss shows that name with a part of the bytes. OSError."""
        if self._is_on():
            write_back(fd)

    def flush(self) -> None:
        """Make durable what was changed in names and attributes before, and all bytes that were written back. Blocks.
        OSError: of the flush that should have done it, for all who wait for that one."""
        if not self._is_on():
            return
        with self._lock:
            leads = self._next is None
            mine = self._next = self._next or Future()
        if leads:
            with self._turn:
                with self._lock:
                    self._next = None  # who comes from here on waits for another one
                self._run(mine)
        mine.result()

    def _run(self, flush: Future[None]) -> None:
        try:
            flush_folder(self._folder)
            flush.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised by all who wait
            flush.set_exception(error)


def flush_folder(folder: bytes | str) -> None:
    """As `flush_file_system`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush_file_system(fd)
    finally:
        os.close(fd)
