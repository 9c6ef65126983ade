"""Measure the processor time of processes, by /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable


def processor_s(pids: Iterable[int]) -> float:
    """Return the seconds of processor time that living processes and their ended children have used."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as source:
                fields = source.read().rpartition(b")")[2].split()
        except OSError:
            continue
        total += sum(
            int(fields[index]) for index in (11, 12, 13, 14)
        )  # utime, stime, cutime, cstime: proc(5)
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
