"""Find out by a lease of the kernel whether other processes have a file open (fcntl(2), F_SETLEASE).

A process that opens the file while the lease is held waits for its end. The holder gets a signal, for which the one is
chosen that does nothing by default: the kernel's own choice would end it.
"""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def lease(fd: int, kind: int) -> Iterator[None]:
    """Hold a lease of a file. kind: F_WRLCK, which needs that nobody else has it open or mapped, or F_RDLCK, which
    needs a descriptor for reading only, and that nobody has it open for writing or mapped writable. Raises
    BlockingIOError if that is not so, and OSError if the file system gives no leases."""
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)
    try:
        yield
    finally:
        with suppress(OSError):  # the holder closed the descriptor, and so ended the lease
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def gets_lease(fd: int, kind: int) -> bool:
    """Return whether the kernel grants a lease, which is given back at once. kind: as for `lease`. Raises OSError if
    the file system gives no leases."""
    try:
        with lease(fd, kind):
            return True
    except BlockingIOError:
        return False


def may_be_open(fd: int) -> bool:
    """Return whether another process has the file open or mapped; True if that can't be determined."""
    try:
        return not gets_lease(fd, fcntl.F_WRLCK)
    except OSError:
        return True


def may_be_written(fd: int) -> bool:
    """Return whether any process has the file open for writing or mapped writable; True if that can't be determined.
    fd: open for reading only."""
    try:
        return not gets_lease(fd, fcntl.F_RDLCK)
    except OSError:
        return True
