"""The goals of policies that a simulation can show."""

from __future__ import annotations

from nodebench.report import Goal
from nodebench.results import Results

from .budgets import MOST, USED
from .cases import CURVE_ERROR, GUARANTEE_LOST, HITS_LOST, SHARED_HITS, WRITES
from .events import SEEN, SEEN_P99
from .expiry import LATENESS, MEMORY, PROCESSOR
from .hot_set import SERVED
from .levels import OVER_LINK, WARM
from .limits import EXCEEDED
from .moves import FAILED, FAST_HITS, THROUGHPUT, WRONG
from .resolution import RESOLVED

TRACES = ("popular", "popular, half scans", "shuffled epochs")
BY_TENANT = "by tenant, S3-FIFO"
SCAN_HEAVY = tuple(
    f"popular files {files} x the cache, {scans} scanned for each read"
    for files in (1, 4)
    for scans in (1, 3)
)
DRIFTS = ("popular", "other files become popular")
LOADS = ("demands that differ", "loads that begin and end")


def goals(results: Results) -> list[Goal]:
    return [
        *(
            Goal(f"{SHARED_HITS}, {trace}", 0.99, True, results.median(SHARED_HITS, f"{BY_TENANT}, {trace}"))
            for trace in ("popular", "epochs")
        ),
        *(
            Goal(
                f"{GUARANTEE_LOST}, {trace}",
                0,
                False,
                results.median(GUARANTEE_LOST, f"{BY_TENANT}, {trace}"),
                "files",
            )
            for trace in ("popular", "epochs")
        ),
        Goal(EXCEEDED, 0.01, False, results.median(EXCEEDED, "headrace")),
        Goal(LATENESS, 2, False, results.median(LATENESS, "timer wheel"), "s"),
        Goal(PROCESSOR, 0.01, False, results.median(PROCESSOR, "timer wheel")),
        Goal(RESOLVED, 2, False, results.median(RESOLVED, "known directories"), "µs"),
        Goal(MEMORY, 24, False, results.median(MEMORY, "timer wheel"), "B a file"),
        *(
            Goal(f"{WRITES}, {name}", 0.5, False, results.median(WRITES, f"S3-FIFO, {name}"))
            for name in SCAN_HEAVY
        ),
        *(
            Goal(f"{HITS_LOST}, {name}", 0.01, False, results.median(HITS_LOST, f"S3-FIFO, {name}"))
            for name in SCAN_HEAVY
        ),
        *(
            Goal(f"{CURVE_ERROR}, {name}", 2, False, results.median(CURVE_ERROR, name), "points")
            for name in TRACES
        ),
        Goal(SEEN, 1, False, results.median(SEEN, "median"), "s"),
        Goal(SEEN_P99, 1, False, results.median(SEEN_P99, "headrace"), "s"),
        Goal(OVER_LINK, 1.01, False, results.median(OVER_LINK, "headrace")),
        Goal(f"{WARM}, of a cluster alone", 0.99, True, results.ratio(WARM, "of two levels", "alone")),
        Goal(FAILED, 0, False, results.median(FAILED, "headrace"), "reads"),
        Goal(WRONG, 0, False, results.median(WRONG, "headrace"), "files"),
        Goal(THROUGHPUT, 0.95, True, results.median(THROUGHPUT, "headrace")),
        *(Goal(f"{FAST_HITS}, {name}", 1.05, True, results.median(FAST_HITS, name)) for name in DRIFTS),
        Goal(SERVED, 0.75, False, results.median(SERVED, 'replicas = "auto"')),
        *(Goal(f"{USED}, {name}", 0.9, True, results.median(USED, name)) for name in LOADS),
        *(Goal(f"{MOST}, {name}", 1.02, False, results.median(MOST, name)) for name in LOADS),
    ]
