"""Cases 1 to 4: what is in the cache already, all contenders up at once and interleaved."""

from __future__ import annotations

import os
import time

from .bench import GIB, Bench
from .data import Data
from .machine import drop_page_cache
from .workers import busy_s

IDLE_S = 1.0
WARM_PASSES = 3
FILES_LIMIT_S = 6
WARM_LIMIT_S = 6
FILL_LIMIT_S = 30


def idle_rate() -> float:
    """Processor seconds a second that the machine spends with nothing of ours running."""
    start = busy_s()
    time.sleep(IDLE_S)
    return (busy_s() - start) / IDLE_S


def sequential(bench: Bench) -> None:
    """Cases 1 and 2."""
    bench.start_cached()
    bench.results.note("dropped: all of the machine's page, dentry and inode cache, before every reader")
    bench.results.note("processor time: whole machine, around the reading loop, less the idle rate before it")
    for _ in range(bench.repeat):
        for name, mount in bench.mounts.items():
            path = os.path.join(mount.root, Data.BIG)
            for state in ("dropped", "warm"):
                with bench.attempt(f"1 sequential, {state}", name):
                    _read_once(bench, name, path, state)


def _read_once(bench: Bench, name: str, path: str, state: str) -> None:
    if state == "dropped":
        drop_page_cache()
    else:
        bench.worker("sequential", path, 1)  # not measured: fills the page cache
    idle = idle_rate()
    got = bench.worker("sequential", path, WARM_PASSES if state == "warm" else 1)
    gib = got["bytes"] / GIB
    busy = max(0.0, got["busy_s"] - idle * got["seconds"])
    add = bench.results.add
    add(f"1 sequential, {state}", name, got["bytes"] / got["seconds"] / 1e9, unit="GB/s")
    add(f"2 processor time, {state}", name, busy / gib, unit="s/GiB")


def small_files(bench: Bench) -> None:
    """Case 3. Whoever can't fill its cache with all files in time is measured on those it has."""
    bench.start_cached()
    cached = {}
    for name, mount in bench.mounts.items():
        with bench.attempt("3 small files", name):
            got = _read_files(bench, mount.root, bench.data.small_count, -1, 1, FILL_LIMIT_S)
            cached[name] = int(got["files"])
            if cached[name] < bench.data.small_count:
                bench.results.note(f"3: {name} with {cached[name]} files, filled in {FILL_LIMIT_S} s")
    for turn in range(bench.repeat):
        for processes in (1, 2):
            measure = f"3 small files, {processes} process{'es' * (processes > 1)}"
            for name, count in cached.items():
                with bench.attempt(measure, name):
                    root = bench.mounts[name].root
                    # not measured: what the others read since may have pushed these pages out of memory
                    _read_files(bench, root, count, turn, processes, WARM_LIMIT_S)
                    got = _read_files(bench, root, count, turn, processes, FILES_LIMIT_S)
                    bench.results.add(measure, name, got["files"] / got["seconds"], unit="files/s")
                    if got["files"] < count:
                        bench.results.note(f"3: {name} read a part of its files, for {FILES_LIMIT_S} s a run")


def _read_files(
    bench: Bench, root: str, count: int, seed: int, processes: int, limit_s: int
) -> dict[str, float]:
    words = ("files", bench.data.names_path, root, count, seed, processes, limit_s)
    return bench.worker(*words, timeout_s=limit_s + 60)


def random_mmap(bench: Bench) -> None:
    """Case 4."""
    bench.start_cached()
    count = max(2_000, round(100_000 * bench.scale))
    for turn in range(bench.repeat):
        for name in ("plain", "headrace-passthrough", "headrace-noopen"):
            if name not in bench.mounts:
                continue
            with bench.attempt("4 mmap 8 KiB", name):
                path = os.path.join(bench.mounts[name].root, Data.BIG)
                bench.worker("sequential", path, 1)
                got = bench.worker("random_mmap", path, count, turn)
                bench.results.add("4 mmap 8 KiB", name, got["reads"] / got["seconds"], unit="reads/s")
