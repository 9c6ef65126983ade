"""Drop the page cache between epochs if that is permitted, and report it otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable

DROPPED = "dropped before each epoch"
"""Description of a page cache that was dropped completely."""
_CONTROL = "/proc/sys/vm/drop_caches"


def may_drop() -> bool:
    return os.access(_CONTROL, os.W_OK)


def drop(paths: Iterable[str]) -> str:
    """Drop the page cache and return a description. Blocks while dirty pages are written.

    As root it drops the pages, names and inodes of the whole machine. Otherwise it drops the clean pages of these
    files.
    """
    if may_drop():
        os.sync()
        with open(_CONTROL, "w") as control:
            control.write("3")
        return DROPPED
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
    return "not dropped (that needs root); only the files' own pages were, not those below a FUSE mount"


def memory_bytes() -> int:
    """Return the size of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
