"""The cases, and what issue 4 wants of each."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from nodebench.machine import Workplace, drop_page_cache, run_worker
from nodebench.report import Goal
from nodebench.results import Results
from nodebench.telling import Telling

from . import workers
from .peer import MEASURE as FROM_PEER
from .peer import peer

OURS, MAPPED, READ = "headrace", "headrace, mapped", "read into new memory"
WAYS = {OURS: "copied", MAPPED: "mapped", READ: "read"}
STATE_BYTES = 4 * 10**9
STOPPED, CHANGED = "1 training is stopped", "2 bytes stored"
RESTORE = {state: f"3 restore, {state}" for state in ("dropped", "warm")}


@dataclass
class Bench(Telling):
    place: Workplace
    results: Results
    scale: float
    repeat: int

    @property
    def state_bytes(self) -> int:
        return round(STATE_BYTES * self.scale)

    def worker(self, *words: object) -> dict[str, Any]:
        answer: dict[str, Any] = run_worker(workers.__file__, *words, timeout_s=900)
        return answer


def stopped(bench: Bench) -> None:
    """A trainer that makes full checkpoints: how long it stands still. torch.save with and without fsync at its end;
    memcpy is one copy of all bytes by one thread into memory that was touched before."""
    answer = bench.worker("save", bench.place.folder("save"), bench.state_bytes, bench.repeat)
    for name, seconds in answer["stopped_s"].items():
        for sample in seconds:
            bench.results.add(STOPPED, name, sample, unit="s")
    for sample in answer["committed_s"]:
        bench.results.add("1 until committed", OURS, sample, unit="s")
    bench.results.note(
        f"1: a state of {answer['bytes'] / 1e9:.2f} GB; headrace commits in the background, with fsync"
    )


def changed(bench: Bench) -> None:
    """Sizes of files, exact: one run."""
    answer = bench.worker("changed", bench.place.folder("changed"), bench.state_bytes // 4)
    for name in ("full", "a tenth of the layers", "the first tenth of each"):
        bench.results.add(CHANGED, name, answer[name], unit="B")
    bench.results.note(f"2: a tenth of the layers is {answer['share']:.4f} of the bytes; manifests included")


def restore(bench: Bench) -> None:
    """`load` into new memory and mapped, checksums verified, in a new process each time, against cat of the packs to
    /dev/null, and against reading them into new memory, which is what a restore that copies can't do without."""
    folder = bench.place.folder("restore")
    size = bench.worker("fill", folder, bench.state_bytes)["bytes"]
    packs = [os.path.join(folder, "packs", name) for name in os.listdir(os.path.join(folder, "packs"))]
    for _ in range(bench.repeat):
        for state, measure in RESTORE.items():
            if state == "dropped":
                drop_page_cache()
            else:
                cat(packs)
            bench.results.add(measure, "cat", size / cat(packs) / 1e9, unit="GB/s")
            for name, way in WAYS.items():
                answer = bench.worker("restore", folder, state, way)
                bench.results.add(measure, name, size / answer["seconds"] / 1e9, unit="GB/s")


def cat(files: list[str]) -> float:
    """Seconds of `cat FILES > /dev/null`."""
    start = time.perf_counter()
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, timeout=300, check=True)
    return time.perf_counter() - start


CASES = {"stopped": stopped, "changed": changed, "restore": restore, "peer": peer}


def goals(r: Results) -> list[Goal]:
    return [
        Goal("1 stopped, of torch.save", 0.1, False, r.ratio(STOPPED, OURS, "torch.save")),
        Goal("1 stopped, of torch.save with fsync", 0.1, False, r.ratio(STOPPED, OURS, "torch.save, fsync")),
        Goal("1 stopped, of memcpy", 1.3, False, r.ratio(STOPPED, OURS, "memcpy")),
        Goal("2 a tenth changed, of full", 0.12, False, r.ratio(CHANGED, "a tenth of the layers", "full")),
        Goal("3 restore, page cache dropped, of cat", 0.9, True, r.ratio(RESTORE["dropped"], OURS, "cat")),
        Goal("3 restore, warm, of cat", 0.9, True, r.ratio(RESTORE["warm"], OURS, "cat")),
        Goal("3 restore, warm, mapped, of cat", 0.9, True, r.ratio(RESTORE["warm"], MAPPED, "cat")),
        Goal("3 restore, warm, of a read into new memory", 0.9, True, r.ratio(RESTORE["warm"], OURS, READ)),
        Goal("4 restore from a peer, of cat", 0.9, True, r.ratio(FROM_PEER, OURS, "cat")),
    ]
