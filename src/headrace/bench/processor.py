"""Measure the processor time of processes, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.base.proc_stat import stat_fields


def processor_s(pids: Iterable[int]) -> float:
    """Return the seconds of processor time that living processes and their ended children have used."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in pids:
        fields = stat_fields(pid)
        if fields is None:
            continue
        # utime, stime, cutime, cstime: proc(5)
        total += sum(int(fields[index]) for index in (11, 12, 13, 14))
    return total / ticks


def children() -> list[int]:
    """Return the ids of this process's children."""
    pids = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as source:
                pids += [int(pid) for pid in source.read().split()]
        except OSError:
            continue
    return pids
