"""Name entries of `work` by the process that owns them, so that a node recognizes the remains of dead processes.

A process is identified by its pid, its start time (pids are reused) and its pid namespace. A container may share the
directory, and processes outside cannot see whether its processes live. A name therefore also contains its creation
time.
"""

from __future__ import annotations

import os

from headrace.base.boot_clock import Moment, boot_id, now_s
from headrace.base.proc_stat import began_at

FOREIGN_ORPHAN_AGE_S = 86400.0
"""Age in seconds at which an entry counts as orphaned if its owner is in another pid namespace."""

_own: tuple[int, bytes] = (0, b"")


def temp_prefix() -> bytes:
    """Return the prefix of this process; it changes after a fork."""
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, b"%x.%x.%x" % (_namespace(), pid, began_at(pid))
    return _own[1]


def temp_name(serial: int) -> bytes:
    """Return a unique name. serial: unique in this process."""
    return b"%s-%d-%d@%s" % (temp_prefix(), serial, int(now_s()), boot_id().encode())


def is_orphaned(name: bytes) -> bool:
    """Return whether the owner of an entry in `work` is dead."""
    owner, _, rest = name.partition(b"-")
    try:
        namespace, pid, began = (int(part, 16) for part in owner.split(b"."))
    except ValueError:
        return _age_s(rest) > FOREIGN_ORPHAN_AGE_S
    if namespace != _namespace():
        return _age_s(rest) > FOREIGN_ORPHAN_AGE_S
    return not began or began_at(pid) != began


def _age_s(rest: bytes) -> float:
    """Return the least age of a name, in seconds. rest: the serial and the time; names of older releases have only the
    serial."""
    made_s, _, boot = rest.partition(b"-")[2].partition(b"@")
    return Moment(os.fsdecode(boot), float(made_s) if made_s.isdigit() else 0.0).age_s()


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino
