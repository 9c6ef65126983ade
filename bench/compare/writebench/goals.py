"""Compares what is wanted of writing with what was measured."""

from __future__ import annotations

from nodebench.report import Goal, best, divide
from nodebench.results import Results

from .bench import OURS
from .cases import LARGE, PERSIST, SMALL
from .copies import COPIED, RATES_MBIT
from .exclusive import CREATED, PROCESSES, STAT, UNLINKED

JUICEFS = ("juicefs", "juicefs-later")
"""The better of both counts."""


def goals(r: Results) -> list[Goal]:
    small = divide(r.median(SMALL, OURS), best(r, SMALL, JUICEFS, max))
    listed = [
        Goal(f"{LARGE}: of plain", 0.95, True, r.ratio(LARGE, OURS, "plain")),
        Goal(f"{SMALL}: of JuiceFS", 3.0, True, small),
    ]
    for data in ("big", "small"):
        measure = f"{PERSIST}, {data}"
        listed.append(Goal(f"{measure}: of s5cmd", 0.9, True, r.ratio(measure, "headrace-later", "s5cmd")))
        while_written = r.ratio(measure, "headrace-back", "s5cmd")
        listed.append(Goal(f"{measure}, and written meanwhile: of s5cmd", 0.9, True, while_written))
    for rate in RATES_MBIT:
        measure = f"{COPIED}, {rate} Mbit/s: of the slower of disk and link"
        listed.append(Goal(measure, 0.95, True, r.median(measure, "headrace-back:2")))
    for processes in PROCESSES:
        tail = f", {processes} processes" if processes > 1 else ""
        for measure, share in ((CREATED, 0.75), (STAT, 0.6), (UNLINKED, 0.7)):
            got = r.ratio(measure + tail, "headrace-back,exclusive", "plain")
            listed.append(Goal(f"{measure}{tail}, exclusive: of plain", share, True, got))
    return listed
