"""Keep the times of a directory while the node changes entries in it that no program sees."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from headrace.base.beneath import SafePath


@contextlib.contextmanager
def keeping_times(directory: SafePath) -> Iterator[None]:
    """Give a directory its modification time back after a change of its entries. Do nothing if it does not exist.

    The directory is held by a descriptor, so the time reaches the same one even if it is moved or removed meanwhile.
    The caller holds the layer's lock, so no session sets a time or a name in between.
    """
    try:
        fd = directory.open(os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it was removed meanwhile, or the change fails likewise and says why
        yield
        return
    try:
        mtime_ns = os.fstat(fd).st_mtime_ns
        try:
            yield
        finally:
            _set_mtime(fd, mtime_ns)
    finally:
        os.close(fd)


def _set_mtime(fd: int, mtime_ns: int) -> None:
    """Set the modification time of an open directory, if it is another one. A change is not undone because this
    fails."""
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        if status.st_mtime_ns != mtime_ns:
            os.utime(fd, ns=(status.st_atime_ns, mtime_ns))
