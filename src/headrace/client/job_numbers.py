"""Say which processes belong to one job, as far as a session sees them: those of a container, or of a process group.

A pid is as the session's own pid namespace shows it. A process that it does not show has the pid 0 in its requests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


def job_numbers(pids: Iterable[int]) -> dict[int, int]:
    """Return the number of the job of each process or thread; 0 for one that is unknown, or has ended.

    It is the inode of the pid namespace for a process in another one than ours, and else the process group. The kernel
    gives namespaces inodes beyond all pids (PROC_DYNAMIC_FIRST, 0xF0000000).
    """
    own_namespace = _pid_namespace("self")
    return {pid: _job_number(pid, own_namespace) if pid > 0 else 0 for pid in pids}


def _job_number(pid: int, own_namespace: int) -> int:
    try:
        group = os.getpgid(pid)
    except (OSError, OverflowError):
        return 0
    namespace = _pid_namespace(str(pid))
    return group if namespace in (0, own_namespace) else namespace


def _pid_namespace(process: str) -> int:
    """Return the inode of a process's pid namespace; 0 if this process may not know it."""
    try:
        return os.stat(f"/proc/{process}/ns/pid").st_ino
    except OSError:
        return 0
