"""Measures what went over each node's link, what the links allow, and how busy the processors were.

A ring spreads a set over its owners evenly only in the mean. A set that all read at once goes out of its owners' links,
and no reader has all of it before the fullest link, of an owner or a reader, has carried all that it must: so
`all bytes / (bytes of the fullest link / its rate)` is the most that they can have together, whatever the program.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from headrace.lab import processes
from headrace.lab.lab import Lab

Carried = dict[tuple[str, str], int]
"""Bytes by owner and reader."""


def carried(before: Mapping[int, Mapping[str, Any]], after: Mapping[int, Mapping[str, Any]]) -> Carried:
    """Return, by readers' reports (`headrace status`), what each had of each peer in between."""
    bytes_by_link = {}
    for number, report in after.items():
        known = before[number]["cluster"]["peers"]
        for owner, peer in report["cluster"]["peers"].items():
            bytes_by_link[owner, f"node-{number}"] = peer["bytes"] - known.get(owner, {"bytes": 0})["bytes"]
    return bytes_by_link


def numbers(pair: tuple[str, str]) -> tuple[int, int]:
    """Return the numbers of node ids "node-N"."""
    owner, reader = (int(id.rpartition("-")[2]) for id in pair)
    return owner, reader


def allowed_bytes_s(carried: Carried, link_bytes_s: float) -> float:
    """Return the rate that the fullest link allows; each carries so much each way. 0 where nothing went."""
    out, into = defaultdict[str, int](int), defaultdict[str, int](int)
    for (owner, reader), size in carried.items():
        out[owner] += size
        into[reader] += size
    fullest = max([*out.values(), *into.values()], default=0)
    return sum(into.values()) * link_bytes_s / fullest if fullest else 0.0


def processor_s(lab: Lab) -> float:
    """Return what all nodes and their sessions used so far, without what the kernel does for links in nobody's name."""
    ticks = 0
    for number in lab.record.nodes:
        for pid in processes.marked(lab.folder(number)):
            try:
                with open(f"/proc/{pid}/stat", "rb") as source:
                    fields = source.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it ended
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
