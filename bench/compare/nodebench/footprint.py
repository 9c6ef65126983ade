"""Cases 8 to 10: memory after many opens, a large namespace, and the start. Headrace alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .bench import Bench
from .headrace_mount import HeadraceMount

OURS = "headrace-passthrough"
MB = 1e6
FIRST_SAMPLE = 100_000
OPENS_LIMIT_S = 200
STATS = 100_000
STAT_LIMIT_S = 40
UPS = 5


def memory(bench: Bench) -> None:
    """Case 8."""
    bench.stop_cached()
    total = max(2_000, round(bench.opens * min(1.0, bench.scale)))
    first = min(FIRST_SAMPLE, total // 2)
    with bench.attempt("8 memory", OURS), bench.up("passthrough") as mount:
        mount.load("small")
        samples = []
        done = 0
        for count in (first, total - first):
            words = ("opens", bench.data.names_path, mount.root, count, OPENS_LIMIT_S)
            got = bench.worker(*words, timeout_s=OPENS_LIMIT_S + 60)
            bench.results.add("8 opens", OURS, got["opens"] / got["seconds"], unit="opens/s")
            done += int(got["opens"])
            samples.append((done, mount.memory()))
            for who, value in samples[-1][1].items():
                bench.results.add(f"8 memory after {done:,} opens", who, value / MB, unit="MB")
        if done < total:
            bench.results.note(f"8: {done:,} of {total:,} opens, then the time was up")
        for who in samples[0][1]:
            grown = (samples[-1][1][who] - samples[0][1][who]) / MB
            bench.results.add("8 memory grown after the first sample", who, grown, unit="MB")


def entries(bench: Bench) -> None:
    """Case 9."""
    bench.stop_cached()
    count = max(1_000, round(1_000_000 * bench.scale))
    url = f"synthetic://{count}/110000?directories=1"
    with bench.attempt("9 entries", OURS), bench.up("passthrough", url) as mount:
        got = bench.worker("list_and_stat", mount.root, STATS, STAT_LIMIT_S, timeout_s=240)
        add = bench.results.add
        add("9 entries", OURS, got["entries"], unit="entries")
        add("9 time to list", OURS, got["list_s"], unit="s")
        add("9 stat", OURS, got["stats"] / got["stat_s"], unit="stats/s")
        for who, value in mount.memory().items():
            add("9 memory with all entries", who, value / MB, unit="MB")
        index = index_bytes(bench, mount)
        add("9 index bytes per entry", OURS, index / got["entries"], unit="B")
        if count < 1_000_000:
            bench.results.note(f"9: with {count:,} entries")


def index_bytes(bench: Bench, mount: HeadraceMount) -> float:
    """Return what `headrace status` says; without that number, the blocks of the index file on disk."""
    for key, value in _numbers(mount.status(), ""):
        if "index" in key and "bytes" in key and "map" not in key:
            return value
    bench.results.note("9: index bytes are the blocks of the index file on disk")
    total = 0
    for folder, _, names in os.walk(mount.cache):
        total += sum(os.stat(os.path.join(folder, n)).st_blocks * 512 for n in names if n.endswith(".mdb"))
    return total


def _numbers(value: Any, key: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _numbers(below, f"{key}.{name}")
    elif isinstance(value, list):
        for below in value:
            yield from _numbers(below, key)
    elif isinstance(value, (int, float)):
        yield key, float(value)


def start(bench: Bench) -> None:
    """Case 10: a new cache each time, from the start of the command to its line that says ready."""
    bench.stop_cached()
    for _ in range(UPS):
        with bench.attempt("10 up to ready", OURS), bench.up("passthrough") as mount:
            bench.results.add("10 up to ready", OURS, mount.up_s, unit="s")
