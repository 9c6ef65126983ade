"""The ways to feed a GPU, each cold at first, from an object store of 1 GB/s and 20 ms a request, scaled.

`headrace bench compare unet3d`: the store's bandwidth is scaled by one factor, times and the latency by another, and
the samples' sizes by both, so that all is in proportion. A file system that is read no faster than the store stands for
a NAS, where loop devices and the cgroup controller blkio (v1) can be had. Writes `bench/results/ways-<date>.json` and
`.md`, and the page of the last run as `.html` and `.png`. Needs root and SeaweedFS. All else of the machine should
rest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program
from nodebench.machine import NotRunError, Workplace, run, tool
from nodebench.report import Goal, number, table_of_values
from nodebench.results import Results
from scalingbench.disks import Disks

WORKLOAD = "unet3d"
RATES, TIMES = 0.05, 0.25
"""Factors: on bandwidths, and on seconds. Sizes are scaled by both, so that all is in proportion."""
ORIGIN_BYTES_S, LATENCY_MS = round(1e9 * RATES), 20 * TIMES
STEPS, EPOCHS = 30, 2
"""Steps: four times what the loader's workers have in hand."""
MEMORY = "/dev/shm"
NAS_BYTES = 2 << 30
HEADRACE, NAS = "Headrace", "a file system of the store's bandwidth"
CASES = {"ways": None}


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    nas = nas_of(place, results)
    for turn in range(given.repeat):
        sys.stderr.write(f"run {turn + 1} of {given.repeat}\n")
        answer = compare(given, place, nas)
        for way in answer["ways"]:
            name = NAS if way["kind"] == "a mounted folder" else way["name"]
            if way["training"] is None:
                results.skip("all", name, way["not_run"])
            else:
                take(results, name, way, answer)
        for note in answer["notes"]:
            results.note(note)


def compare(given: argparse.Namespace, place: Workplace, nas: list[str]) -> Any:
    """One run of all ways. Its page lies in the temporary folder. nas: the option of `nas_of`."""
    words = [tool("headrace"), "bench", "compare", WORKLOAD, "--version", "v2.0", "--json"]
    words += ["--work", place.folder("work")]
    words += ["--scale-sizes", f"{RATES * TIMES:g}", "--scale-times", f"{TIMES:g}"]
    words += ["--origin-rate", str(ORIGIN_BYTES_S)]
    words += ["--origin-latency-ms", str(LATENCY_MS), "--epochs", str(EPOCHS)]
    words += ["--steps", str(max(3, round(STEPS * given.scale)))]
    report = os.path.join(place.root, "report")
    return json.loads(run([*words, *nas, "--report", report], timeout_s=900))


def nas_of(place: Workplace, results: Results) -> list[str]:
    """Return the option for a folder that stands for a NAS; nothing where there can be none."""
    folder = os.path.join(place.folder("mount"), "nas")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    try:
        images = os.path.join(MEMORY, os.path.basename(place.root))
        os.makedirs(images)
        place.undo.callback(shutil.rmtree, images, ignore_errors=True)
        disks = Disks(images, place.undo)
        disks.make(folder, size_bytes=NAS_BYTES, bytes_s=ORIGIN_BYTES_S)
    except NotRunError as error:
        results.skip("all", NAS, str(error))
        return []
    return ["--folder", folder]


def take(results: Results, name: str, way: dict[str, Any], answer: dict[str, Any]) -> None:
    for epoch, served in zip(way["training"]["epochs"], way["served"], strict=True):
        when = f"epoch {epoch['epoch']}"
        results.add(f"AU, {when}", name, 100 * epoch["au"], unit="%")
        results.add(f"wall time, {when}", name, epoch["wall_s"], unit="s")
        results.add(f"origin, {when}", name, served["bytes"] / answer["dataset_bytes"], unit="of data set")
        if epoch["epoch"] == 1:
            results.add("first batch", name, epoch["first_batch_s"], unit="s")
            results.add("origin served, epoch 1", name, served["bytes"] / epoch["wall_s"] / 1e6, unit="MB/s")
            results.add("requests, epoch 1", name, served["requests"], unit="")
    results.add("processor time", name, way["processor_s_gib"], unit="s/GiB")
    results.add("disk of data set", name, way["disk_bytes"] / answer["dataset_bytes"], unit="")
    results.add("failed reads", name, way["training"]["failed"], unit="")


def goals(results: Results) -> list[Goal]:
    """Note that ours is to be the fastest of those that read the store."""
    listed = []
    for measure, at_least in (
        ("AU, epoch 1", True),
        ("wall time, epoch 1", False),
        (f"AU, epoch {EPOCHS}", True),
    ):
        others = [
            value
            for name in results.values.get(measure, {})
            if name not in (HEADRACE, NAS, "local disk")
            and (value := results.median(measure, name)) is not None
        ]
        if others:
            best = max(others) if at_least else min(others)
            listed.append(
                Goal(f"{measure}: the best of the others", best, at_least, results.median(measure, HEADRACE))
            )
    return listed


def table_of_goals(results: Results) -> str:
    lines = [
        "| beside the best of the other ways from the store | theirs | ours | verdict |",
        "|---|---|---|---|",
    ]
    for goal in goals(results):
        ours = f"{goal.measured:.2f}" if goal.measured is not None else "–"
        verdict = {"met": "not behind", "missed": "behind"}.get(goal.verdict, goal.verdict)
        lines.append(f"| {goal.text} | {number(goal.limit)} | {ours} | {verdict} |")
    return "\n".join(lines)


def keep_page(place: Workplace, given: argparse.Namespace) -> None:
    stem = f"ways-{time.strftime('%Y-%m-%d')}" + ("" if given.scale == 1 else f"-scale-{given.scale:g}")
    for end in ("html", "png"):
        path = os.path.join(place.root, "report", f"compare.{end}")
        if os.path.exists(path) and not given.no_write:
            target = program.RESULTS / f"{stem}.{end}"
            shutil.copy(path, target)
            if end == "html":  # it names a temporary folder
                page = re.sub(re.escape(place.root) + r"/[\w/-]*nas", NAS, target.read_text())
                target.write_text(page)


def main() -> int:
    parser = program.parser_of(__doc__, CASES, scale_of="the steps of an epoch", folder_for=program.ON_A_DISK)
    given = program.parse(parser, CASES, root_for="it mounts, and drops the page cache")
    results = Results()
    results.note(
        f"{WORKLOAD}, sizes times {RATES * TIMES:g}, times by {TIMES:g}; an origin of {ORIGIN_BYTES_S / 1e6:g} MB/s "
        f"and {LATENCY_MS:g} ms a request, in proportion to 1 GB/s and 20 ms; one simulated A100, a fixed order"
    )

    def measured(place: Workplace) -> None:
        measure(given, place, results)
        keep_page(place, given)

    return program.run(
        "ways",
        given,
        results,
        measured,
        folder=given.folder,
        goals=goals,
        tables=lambda: [table_of_goals(results), table_of_values(results)],
    )


if __name__ == "__main__":
    sys.exit(main())
