"""The clock of deadlines and ages: it runs while the machine sleeps, and nobody can set it (CLOCK_BOOTTIME).

The wall clock jumps. A time of this clock means nothing in another boot, so a time that is stored names its boot.
"""

from __future__ import annotations

import functools
import os
import time

import msgspec

now_ns = functools.partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
now_s = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Partial objects, because a call of a Python function costs time in each hit."""


@functools.cache
def boot_id() -> str:
    """Return the random id that the kernel makes when the machine starts."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:  # a sandbox without that file
        return os.uname().nodename


class Moment(msgspec.Struct, frozen=True):
    """A time that can be stored. boot: the id of the boot that `at_s` counts from."""

    boot: str
    at_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(boot_id(), now_s())

    def age_s(self) -> float:
        """Return the age, at least. For a time of another boot only the time since this boot began is known."""
        return max(0.0, now_s() - self.at_s) if self.boot == boot_id() else now_s()
