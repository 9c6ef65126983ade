"""Clean files leave the upper layer when it takes too much of the disk: from then on they are read from their origin,
and cached, like any others.

A file goes only while nobody has it open or mapped: the kernel grants a lease for that (fcntl(2), F_SETLEASE), and who
opens a name of the layer holds its lock, as this does. What the origin can't hold of it (owner, mode, extended
attributes) is lost then, as docs/semantics.md says.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable

from headrace.layer.known import Row
from headrace.layer.upper import Upper


def choose(rows: Iterable[tuple[Row, os.stat_result]], bytes_wanted: int) -> list[bytes]:
    """Paths of clean files, those first that were written longest ago, until so many bytes are together."""
    found: list[bytes] = []
    for row, seen in sorted(rows, key=lambda pair: pair[1].st_mtime_ns):
        if bytes_wanted <= 0:
            break
        found.append(row.path)
        bytes_wanted -= seen.st_blocks * 512
    return found


def let_go(upper: Upper, row: Row, is_shown: Callable[[bytes], bool], *, empty_too: bool = False) -> int:
    """The bytes that became free; 0 when the file is in use, was written, or has other names. is_shown: whether the
    index has the version of the row at the path, so that the name goes on being there. empty_too: a file of no bytes
    counts as 1."""
    at = upper.at(row.path)
    with upper.lock:
        try:
            fd = os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return 0
        try:
            seen = os.fstat(fd)
            if not stat.S_ISREG(seen.st_mode) or seen.st_nlink != 1 or not row.describes(seen):
                return 0
            if not _in_use(fd) and is_shown(row.path):
                os.unlink(at)
                return max(seen.st_blocks * 512, int(empty_too))
        finally:
            os.close(fd)
    return 0


def _in_use(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
