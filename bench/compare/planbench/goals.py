"""The goals of plans."""

from __future__ import annotations

from nodebench.report import Goal
from nodebench.results import Results

from .cases import ALL_MISSES, HITS, JOINT, OF_THE_JOB, PEAK, SUBSTITUTED
from .epochs import COLD, FIRST, PARTS_OF_FILES, WORKLOADS
from .extents import MEMORY
from .extents import OF_THE_JOB as OF_THE_JOB_WITH_EXTENTS
from .nodes import ALL_EPOCHS, EPOCHS, NETWORK, OWN, WRONG
from .waits import BESIDE, RATIO


def goals(results: Results) -> list[Goal]:
    return [
        Goal(HITS, 0.98, True, results.median(HITS, "plan")),
        Goal(JOINT, 1.84, False, results.median(JOINT, "plan"), "data sets"),
        Goal(
            f"{SUBSTITUTED}, with our policy",
            1.0,
            False,
            results.median(SUBSTITUTED, "S3-FIFO (ours)"),
            "data sets",
        ),
        Goal(
            "origin bytes, of libcachesim's Belady",
            1.01,
            False,
            results.ratio(ALL_MISSES, "plan", "Belady of libcachesim"),
        ),
        Goal(PEAK, 1.05, False, results.median(PEAK, "the next 60 s known")),
        Goal(
            "a plan of 10,000,000 samples: processor time of the job",
            1.0,
            False,
            results.median(OF_THE_JOB, "from a list"),
            "s",
        ),
        Goal(
            "the same: longest step of the node",
            10.0,
            False,
            results.median("a plan: longest step", "plan"),
            "ms",
        ),
        *(
            Goal(
                f"{COLD} {name}, with a plan, of the warm one's",
                0.98,
                True,
                results.median(f"{COLD} {name}", "plan"),
            )
            for name in WORKLOADS
            if name not in PARTS_OF_FILES
        ),
        *(
            goal
            for kind in ("windows of 16 KiB", "Megatron")
            for goal in (
                Goal(f"{MEMORY}, {kind}", 8.0, False, results.median(MEMORY, kind), "B a sample"),
                Goal(
                    f"{OF_THE_JOB_WITH_EXTENTS}, {kind}",
                    1.0,
                    False,
                    results.median(OF_THE_JOB_WITH_EXTENTS, kind),
                    "s",
                ),
            )
        ),
        Goal(f"{RATIO}, {BESIDE}", 2.0, False, results.median(RATIO, BESIDE)),
        *(
            Goal(f"{FIRST} {name}", 1.0, False, results.median(f"{FIRST} {name}", "plan"), "steps")
            for name in WORKLOADS
            if name not in PARTS_OF_FILES
        ),
        Goal("the same: memory", 8.0, False, results.median("a plan: memory", "plan"), "B a sample"),
        *of_nodes(results),
    ]


def of_nodes(results: Results) -> list[Goal]:
    """Return the goals of a job on several nodes."""
    wrong = max(map(max, results.values.get(WRONG, {}).values()), default=None)
    return [
        *(
            Goal(f"{OWN}: {epoch}", 0.95, True, results.median(f"{OWN}: {epoch}", "plan"))
            for epoch in (f"epoch {number}" for number in range(1, EPOCHS + 1))
        ),
        Goal(
            f"{NETWORK}: {ALL_EPOCHS}, of those without a plan",
            1.02,
            False,
            results.ratio(f"{NETWORK}: {ALL_EPOCHS}", "plan", "no plan"),
        ),
        Goal(WRONG, 0, False, wrong),
    ]
