"""The goals of sealed data sets."""

from __future__ import annotations

from nodebench.report import Goal
from nodebench.results import Results

from .cases import MOUNT_MORE, PROCESSES, VERSIONS, dropped_name, processor_name, warm_name
from .lazy import PROCESSES as COLD_PROCESSES
from .lazy import WAYS, cold_name


def goals(results: Results) -> list[Goal]:
    listed = [
        Goal(
            f"{dropped_name(count)}: of plain",
            0.85,
            True,
            results.ratio(dropped_name(count), "sealed", "plain"),
        )
        for count in PROCESSES
    ]
    listed += [
        Goal(
            f"{processor_name(count)}: of plain",
            1.35,
            False,
            results.ratio(processor_name(count), "sealed", "plain"),
        )
        for count in PROCESSES
    ]
    listed += [
        Goal(f"{warm_name(count)}: of plain", 0.95, True, results.ratio(warm_name(count), "sealed", "plain"))
        for count in (1, 2)
    ]
    listed += [
        Goal(f"walk, {state}: of plain", 0.6, True, results.ratio(f"walk, {state}", "sealed", "plain"))
        for state in ("warm", "dropped")
    ]
    listed += [
        Goal(
            f"{cold_name(count)}: of the mount", 0.98, True, results.ratio(cold_name(count), "lazy", WAYS[0])
        )
        for count in COLD_PROCESSES
    ]
    return [
        *listed,
        Goal("seal of cached files", 60.0, False, results.median("seal of cached files", "sealed"), "s"),
        Goal(MOUNT_MORE, 0.05, False, results.median(MOUNT_MORE, "sealed"), "s"),
        Goal("metadata", 200.0, False, results.median("metadata", "sealed"), "B a file"),
        Goal(f"{VERSIONS} versions", 1.1, False, results.median(f"{VERSIONS} versions", "sealed")),
    ]
