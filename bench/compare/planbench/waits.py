"""Measures how long a warm batch waits beside a load, a checkpoint and a rebalance, of its median.

A lab of two nodes with an object store of its own. One rank on node 1 reads batches in its own process, so that a
batch's wait is what its reads take. The data set is warm: the rank has read it once. Then it reads it for a while
three times: with nothing beside it, with all three beside it, and with all three beside the same files of a plain
directory. The last one is what the processors and the disk of the machine cost.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clusterbench.bench import Bench as ClusterBench
from nodebench.machine import run_worker

from headrace.lab.lab import Lab

from .cases import Bench

FILES, FILE_BYTES, BATCH, STEP_S = 4000, 110_000, 32, 0.01
OTHER_FILES = 2000
"""Of the data set that is loaded beside."""
SECONDS = 40.0
CHECKPOINT_BYTES = 256 << 20
QUIET, BESIDE, PLAIN = "nothing beside", "all three beside", "all three beside, plain directory"
MEDIAN = "a warm batch's wait: median"
P999 = "a warm batch's wait: p99.9"
RATIO = "a warm batch's wait: p99.9, of the median"
LONGEST = "a warm batch's wait: longest"
WAITER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "waiter.py")


def waits(bench: Bench) -> None:
    count, other = max(4 * BATCH, round(FILES * bench.scale)), max(50, round(OTHER_FILES * bench.scale))
    seconds = max(2.0, SECONDS * bench.scale)
    cluster = ClusterBench(bench.place, bench.results, bench.scale, bench.repeat, time.monotonic() + 3600)
    with cluster.lab(2, 0, cache_bytes=4 << 30, write="off,/checkpoints=back") as lab:
        cluster.put_unseen(lab, "train", count, FILE_BYTES)
        cluster.put(lab, "other", other, FILE_BYTES)
        mounted = f"{lab.mountpoint(1)}/train"
        plain = bench.place.folder("plain")
        subprocess.run(["cp", "-r", f"{mounted}/.", plain], check=True, timeout=600)
        for _ in range(bench.repeat):
            add(bench, QUIET, measured(mounted, seconds))
            for who, folder in ((BESIDE, mounted), (PLAIN, plain)):
                with background(cluster, lab):
                    add(bench, who, measured(folder, seconds))


def measured(folder: str, seconds: float) -> list[float]:
    """Return the wait for each batch, after an epoch that is not counted."""
    waits: list[float] = run_worker(WAITER, folder, BATCH, STEP_S, seconds, timeout_s=seconds + 600)
    return waits


def add(bench: Bench, who: str, waits: list[float]) -> None:
    waits.sort()
    median, p999 = waits[len(waits) // 2], waits[min(len(waits) - 1, round(len(waits) * 0.999))]
    bench.say(f"  {who}: {len(waits)} batches, median {1000 * median:.2f} ms, p99.9 {1000 * p999:.2f} ms")
    bench.results.add(MEDIAN, who, 1000 * median, unit="ms")
    bench.results.add(P999, who, 1000 * p999, unit="ms")
    bench.results.add(RATIO, who, p999 / median, unit="ratio")
    bench.results.add(LONGEST, who, 1000 * waits[-1], unit="ms")


@contextmanager
def background(cluster: ClusterBench, lab: Lab) -> Iterator[None]:
    """Load, write checkpoints and rebalance until the end. A third node joins, and drains, again and again."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def repeat(work: Any) -> None:
        try:
            while not ended.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - raised below, by the thread of the benchmark
            errors.append(error)

    def load() -> None:
        cluster.ask(lab, 1, "free", "/other", timeout_s=120)
        cluster.ask(lab, 1, "load", "/other", timeout_s=120)

    def rebalance() -> None:
        number = lab.add()
        ended.wait(5)
        cluster.ask(lab, number, "node", "drain", timeout_s=120)
        lab.kill(number)

    def save() -> None:
        checkpoint(f"{lab.mountpoint(1)}/checkpoints")
        ended.wait(2)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in (load, rebalance, save)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def checkpoint(folder: str) -> None:
    """Write a checkpoint as a trainer does: a file beside, flushed, and renamed."""
    os.makedirs(folder, exist_ok=True)
    block = os.urandom(4 << 20)
    with open(f"{folder}/new", "wb") as file:
        for _ in range(CHECKPOINT_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{folder}/new", f"{folder}/last")
