"""Moves between tiers under full read load: a store on two directories, and processes that read from both."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash
from nodebench.machine import NotRunError

from headrace.base.model import ROOT_ID, Entry, FileId, Version
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.tier_mover import TierMover
from headrace.store.groups import OneGroup
from headrace.store.index import Index
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.testing.tiered_cache import TieredCache

from .cases import Bench, popular

FAILED = "reads that failed while files moved"
WRONG = "files that were read with wrong bytes while they moved"
THROUGHPUT = "read throughput while files move, of no moves"
MOVED = "moved between the tiers"
STILL = "read throughput, no moves"
FAST_HITS = "hits in the fast tier with moves, of without"
READERS = 2
SMALL_FILES, SMALL_BYTES = 1600, 100_000
LARGE_FILES, LARGE_BYTES = 32, 8 << 20
WINDOW_S, WINDOW_S_MIN, TURNS = 4.0, 2.5, 4
TOUCH_S = 0.3
TIERS = ("nvme", "hdd")


class SwayingDivision(OneGroup):
    """Lets all files lie in one tier, and in the other after `sway`: they never rest."""

    def __init__(self) -> None:
        self.tier: str | None = None
        self._turn = 0

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        return () if self.tier is None else (self.tier,)

    def sway(self) -> None:
        self._turn += 1
        self.tier = TIERS[self._turn % 2]


def moves(bench: Bench) -> None:
    """Files of 100 kB and 8 MiB. In each run, two processes read without and with moves, in turns."""
    small, large = bench.count(SMALL_FILES, 40), bench.count(LARGE_FILES, 2)
    window_s = max(WINDOW_S_MIN, WINDOW_S * min(1.0, bench.scale))
    turns = max(1, round(TURNS * bench.scale))
    root = os.path.join(bench.place.root, "tiers")
    division = SwayingDivision()
    size_bytes = 2 * (small * SMALL_BYTES + large * LARGE_BYTES) + (64 << 20)
    volumes = [Volume(n, f"{root}/{tier}", size_bytes, tier) for n, tier in enumerate(TIERS)]

    def divide(_: Index) -> SwayingDivision:
        return division

    store = Store.open(f"{root}/nvme/index", volumes, rules=SpaceRules(divide=divide))
    try:
        sums = filled(store, small, large)
        Path(f"{root}/sums").write_text(json.dumps(sums))
        ids = list(sums)
        read(root, seconds=1.0)  # page cache
        for _ in range(bench.repeat):
            still, moved = Counter[str](), Counter[str]()
            before = store.moves.counts.bytes_moved
            for _ in range(turns):
                still.update(read(root, seconds=window_s))
                with moving(store, division, ids):
                    moved.update(read(root, seconds=window_s))
            moved_bytes = store.moves.counts.bytes_moved - before
            seconds = turns * window_s
            bench.results.add(THROUGHPUT, "headrace", moved["bytes"] / still["bytes"], unit="share")
            bench.results.add(FAILED, "headrace", moved["failed"], unit="reads")
            bench.results.add(WRONG, "headrace", moved["wrong"], unit="files")
            bench.results.add(MOVED, "headrace", moved_bytes / seconds / 1e6, unit="MB/s")
            bench.results.add(STILL, "headrace", still["bytes"] / seconds / 1e6, unit="MB/s")
        if not store.fsck(lambda *_: None).sound:
            raise NotRunError("fsck found faults after the moves")
    finally:
        store.close()


def filled(store: Store, small: int, large: int) -> dict[FileId, int]:
    """Return the checksum of each file."""
    sums: dict[FileId, int] = {}
    every = small // large
    for number in range(small + large):
        size_bytes = SMALL_BYTES if number % (every + 1) else LARGE_BYTES
        body = os.urandom(size_bytes)
        id, _ = store.index.names.put_file(ROOT_ID, str(number).encode(), Version(size_bytes, 5, "t"))
        entry = store.index.entry(id)
        assert entry is not None
        fill(store, entry, body)
        sums[entry.id] = xxhash.xxh3_64_intdigest(body)
    return sums


def fill(store: Store, entry: Entry, body: bytes) -> None:
    if len(body) == SMALL_BYTES:
        store.complete_small(entry, body)
        return
    writer = store.create(entry)
    writer.write(0, body)
    store.complete(writer)


def read(root: str, *, seconds: float) -> dict[str, int]:
    """Let all readers read, and return their sums."""
    program = str(Path(__file__).with_name("tier_reader.py"))
    places = [f"{root}/nvme/index", f"{root}/nvme", f"{root}/hdd", f"{root}/sums"]
    readers = [
        subprocess.Popen(
            [sys.executable, program, *places, str(seconds), str(seed)], stdout=subprocess.PIPE, text=True
        )
        for seed in range(READERS)
    ]
    rows: list[dict[str, Any]] = []
    for reader in readers:
        out, _ = reader.communicate(timeout=seconds + 60)
        if reader.returncode:
            raise NotRunError(f"a reader ended with {reader.returncode}")
        rows.append(json.loads(out))
    return {key: sum(row[key] for row in rows) for key in rows[0]}


@contextmanager
def moving(store: Store, division: SwayingDivision, ids: list[FileId]) -> Iterator[None]:
    """Move files all the while, as a node does: a loop in a thread. The uses of the readers are reported."""
    ended = threading.Event()

    async def move() -> None:
        disk = ThreadPoolExecutor(4)
        gate = Gate(Window(maximum=8), bytes_max=1 << 30)
        mover = TierMover(store, disk, gate, bytes_s=1 << 30)
        division.sway()
        mover.start()
        try:
            count = 0
            while not ended.is_set():
                await asyncio.sleep(TOUCH_S)
                store.touch(ids[count % len(ids) :][:100])
                count += 100
                if not mover.is_walking:
                    division.sway()
                    mover.place_again()
        finally:
            await mover.stop()
            disk.shutdown()

    thread = threading.Thread(target=asyncio.run, args=(move(),))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def hits(bench: Bench) -> None:
    """Popular files, of which a quarter fits, and the same with other popular files after each quarter of the reads.
    The fast tier has a fifth of the cache. The simulation has the choice of the store."""
    capacity = bench.count(2500)
    for seed in range(bench.repeat):
        reads = list(popular(24 * capacity, 4 * capacity, seed))
        for name, trace in (
            ("popular", reads),
            ("other files become popular", drifting(reads, 4 * capacity)),
        ):
            caches = [TieredCache(capacity // 5, capacity * 4 // 5, moves=on) for on in (False, True)]
            for cache in caches:
                for id in trace:
                    cache.read(id)
            bench.results.add(FAST_HITS, name, caches[1].hits[0] / caches[0].hits[0], unit="share")
            bench.results.add(
                "hits with moves, of without", name, sum(caches[1].hits) / sum(caches[0].hits), unit="share"
            )


def drifting(reads: list[FileId], files: int) -> list[FileId]:
    quarter = len(reads) // 4 + 1
    return [FileId((id + place // quarter * files // 4) % files) for place, id in enumerate(reads)]
