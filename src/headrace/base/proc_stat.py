"""Read what the kernel reports of a process or a thread (proc(5), /proc/PID/stat)."""

from __future__ import annotations

ENDED = ("Z", "X")
"""The states of a process that has ended."""


def stat_fields(id: int | str) -> list[str] | None:
    """Return the fields from field 3 on, the state; None if there is no such process. id: a pid, the id of a thread,
    or PID/task/TID."""
    try:
        with open(f"/proc/{id}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return None


def state_of(id: int | str) -> str:
    """Return the state of a process or a thread; "" if there is none."""
    fields = stat_fields(id)
    return "" if fields is None else fields[0]


def began_at(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot; 0 if there is no such process, or it has ended."""
    fields = stat_fields(pid)
    return 0 if fields is None or fields[0] in ENDED else int(fields[19])
