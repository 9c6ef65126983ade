"""Compares what is wanted of the doors with what was measured."""

from __future__ import annotations

from nodebench.report import Goal
from nodebench.results import Results

from .bench import OURS, PLAIN
from .cases import COLD, KINDS, LOADER, MOUNT, SMALL, START
from .gateway import LARGE, WEED
from .gateway import SMALL as TINY

WEB = ("nginx", "sendfile-threads")
"""The second where the first is not installed."""


def goals(r: Results) -> list[Goal]:
    listed = [
        Goal(f"{START}: import headrace", 60, False, r.median(f"{START}: import headrace", OURS), "ms"),
        Goal(f"{START}: connect", 5, False, r.median(f"{START}: connect", OURS), "ms"),
        Goal(f"{SMALL}: of open, read, close on plain", 0.8, True, r.ratio(SMALL, OURS, PLAIN)),
        Goal(f"{SMALL}: of our mount, passthrough", 3.0, True, r.ratio(SMALL, OURS, MOUNT)),
    ]
    for kind in KINDS:
        measure = f"{LOADER}, {kind}"
        listed.append(Goal(f"{measure}: of plain", 0.95, True, r.ratio(measure, OURS, PLAIN)))
    listed += [
        Goal(f"{COLD}: read_many, of s5cmd", 0.9, True, r.ratio(COLD, OURS, "s5cmd")),
        Goal(f"{COLD}: read_many, of s3fs cat", 3.0, True, r.ratio(COLD, OURS, "s3fs cat")),
    ]
    web = next((name for name in WEB if name in r.values.get(LARGE, {})), WEB[0])
    listed.append(Goal(f"{LARGE}: of {web}", 0.8, True, r.ratio(LARGE, OURS, web)))
    listed.append(Goal(f"{TINY}: of SeaweedFS's S3", 2.0, True, r.ratio(TINY, OURS, WEED)))
    return [goal for goal in listed if goal.measured is not None]
