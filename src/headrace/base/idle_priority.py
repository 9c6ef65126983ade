"""Give background work the lowest priority for the processor and the disk."""

from __future__ import annotations

import contextlib
import os
import platform
import threading

from headrace.base.libc import c_library

NICENESS = 19
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_THREAD, _CLASS_IDLE = 1, 3 << 13


def take_idle_priority() -> None:
    """Lower the priority of the calling thread (setpriority(2), ioprio_set(2)). Disk schedulers without priorities are
    limited only by the rate of the work."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    take_idle_disk_priority()


def take_idle_disk_priority() -> None:
    """Lower the priority of the calling thread for the disk alone. A thread that others wait for, as they do for
    Python's lock, must not wait for the processor."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        c_library().syscall(number, _WHO_THREAD, 0, _CLASS_IDLE)
