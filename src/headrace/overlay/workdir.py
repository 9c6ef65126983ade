"""Names in `work` that tell whose they are: what a dead process left there can be told from what one that lives is
about to place.

A process is known by its pid, the time at which it began (a pid is used again) and its pid namespace: a container may
have the folder, too, and whether its processes live can't be seen from outside. So a name also says when it was made.
"""

from __future__ import annotations

import os

from headrace.base.boot_clock import Moment, boot_id, now_s

FOREIGN_S = 86400.0
"""How old something must be whose owner can't be looked at."""

_own: tuple[int, bytes] = (0, b"")


def temp_prefix() -> bytes:
    """Of this process; another one after a fork."""
    global _own
    pid = os.getpid()
    if _own[0] != pid:
        _own = pid, b"%x.%x.%x" % (_namespace(), pid, _began(pid) or 0)
    return _own[1]


def temp_name(serial: int) -> bytes:
    """One that nobody else has. serial: differs in this process."""
    return b"%s-%d-%d@%s" % (temp_prefix(), serial, int(now_s()), boot_id().encode())


def is_orphaned(name: bytes) -> bool:
    """Whether nobody will ever come back for something in `work`."""
    of, _, rest = name.partition(b"-")
    try:
        namespace, pid, began = (int(part, 16) for part in of.split(b"."))
    except ValueError:
        return _age_s(rest) > FOREIGN_S
    if namespace != _namespace():
        return _age_s(rest) > FOREIGN_S
    return _began(pid) != began


def _age_s(rest: bytes) -> float:
    """Return how old a name is, at least. rest: the serial, and the moment; older releases gave the serial alone."""
    made_s, _, boot = rest.partition(b"-")[2].partition(b"@")
    return Moment(os.fsdecode(boot), float(made_s) if made_s.isdigit() else 0.0).age_s()


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
