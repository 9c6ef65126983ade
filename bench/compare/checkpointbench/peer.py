"""Case 4: a checkpoint that one node has, and nobody else, restored on another over a link. Two nodes of `headrace
lab`, in network namespaces; beside it `cat` of another one's packs on the same mount, and what raw sendfile makes of
the link."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterbench.bench import Bench as ClusterBench
from clusterbench.bench import raw_seconds
from nodebench.machine import NotRunError, drop_page_cache

if TYPE_CHECKING:
    from .cases import Bench

MIB = 1 << 20
RATE_MBIT = 4_000
MEASURE = f"4 restore from a peer, {RATE_MBIT} Mbit/s"
LIMIT_S = 3600.0
VISIBLE_S = 30.0
NEVER_S = "86400"


def peer(bench: Bench) -> None:
    from .cases import OURS, cat

    size = bench.state_bytes // 4
    end_at = time.monotonic() + LIMIT_S
    cluster = ClusterBench(bench.place, bench.results, bench.scale, bench.repeat, end_at)
    cache_bytes = 8 * (bench.repeat + 1) * max(size, 256 * MIB)
    with cluster.lab(2, RATE_MBIT, cache_bytes=cache_bytes, write="back", persist_delay_s=NEVER_S) as lab:
        for turn in range(bench.repeat):
            link = size / raw_seconds(cluster, lab, {(1, 2): size})
            bench.results.add(MEASURE, "sendfile", link / 1e9, unit="GB/s")
            for name in ("cat", OURS)[:: -1 if turn % 2 else 1]:
                folder = f"{name}-{turn}"
                stored = bench.worker("fill", os.path.join(lab.mountpoint(1), folder), size)["bytes"]
                there = os.path.join(lab.mountpoint(2), folder)
                packs = _packs(there, stored)
                os.sync()
                drop_page_cache()
                words = ("restore_new", there, size)
                seconds = cat(packs) if name == "cat" else bench.worker(*words)["seconds"]
                bench.results.add(MEASURE, name, stored / seconds / 1e9, unit="GB/s")


def _packs(folder: str, stored: int) -> list[str]:
    """Once the node that did not write them shows all."""
    until = time.monotonic() + VISIBLE_S
    while time.monotonic() < until:
        packs = list(Path(folder, "packs").glob("*")) if os.path.isdir(folder) else []
        if sum(path.stat().st_size for path in packs) >= stored and list(Path(folder).glob("*")):
            return [str(path) for path in packs]
        time.sleep(0.2)
    raise NotRunError("the other node does not show the checkpoint")
