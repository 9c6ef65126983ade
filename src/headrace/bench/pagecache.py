"""The page cache between epochs: emptied where that is permitted, and said where it is not."""

from __future__ import annotations

import os
from collections.abc import Iterable

DROPPED = "dropped before each epoch"
_CONTROL = "/proc/sys/vm/drop_caches"


def may_drop() -> bool:
    return os.access(_CONTROL, os.W_OK)


def drop(paths: Iterable[str]) -> str:
    """Of the whole machine, where we are root: of pages, names and inodes. Else of these files, what nobody has dirty.
    What was done, in words. Blocks while dirty pages are written."""
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
    return "not dropped (that needs root); the files' own pages were let go, which a FUSE mount may keep below itself"


def memory_bytes() -> int:
    """Of this host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
