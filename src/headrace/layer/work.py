"""Names in `work` that tell whose they are: what a dead process left there can be told from what one that lives is
about to place.

A process is known by its pid, the time at which it began (a pid is used again) and its pid namespace: a container may
have the folder, too, and whether its processes live can't be seen from outside.
"""

from __future__ import annotations

import os
import time

from headrace.base.beneath import SafePath

FOREIGN_S = 86400.0
"""How old something must be whose owner can't be looked at."""

_own: tuple[int, bytes] = (0, b"")


def owner() -> bytes:
    """Of this process; another one after a fork."""
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, b"%x.%x.%x" % (_namespace(), pid, _began(pid) or 0)
    return _own[1]


def is_left(at: SafePath) -> bool:
    """Whether nobody will ever come back for something in `work`."""
    try:
        age_s = time.time() - at.lstat().st_ctime
        namespace, pid, began = (int(part, 16) for part in at.path[1:].split(b"-")[0].split(b"."))
    except OSError:
        return False  # it is gone
    except ValueError:
        return age_s > FOREIGN_S
    if namespace != _namespace():
        return age_s > FOREIGN_S
    return _began(pid) != began


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _began(pid: int) -> int | None:
    """In ticks since the machine started; None: there is no such process any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *rest = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if state in (b"Z", b"X") else int(rest[18])
