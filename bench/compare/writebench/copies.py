"""Case 4: one large file in mode `back:2`, over a link. Two nodes of `headrace lab`, in network namespaces; what a copy
costs is compared with the slower of the plain disk, in the same run, and of the link, as raw sendfile uses it."""

from __future__ import annotations

import os

from clusterbench.bench import Bench as ClusterBench
from clusterbench.bench import raw_seconds
from nodebench.machine import NotRunError

from .bench import Bench
from .contenders import PlainFolder

MIB = 1 << 20
RATES_MBIT = (1_000, 4_000)
COPIED = "4 write, fsync, close, two copies"
NEVER_S = "86400"


def copies(bench: Bench) -> None:
    size = max(64, round(4096 * bench.scale)) * MIB
    for turn in range(bench.repeat):
        for rate in RATES_MBIT[:: 1 if turn % 2 else -1]:
            name = f"{COPIED}, {rate} Mbit/s"
            with bench.attempt(name, "plain"), bench.up(lambda: PlainFolder(bench.place)) as plain:
                disk = _written(bench, os.path.join(plain.root, "large"), size)
                bench.results.add(name, "plain", disk / 1e6, unit="MB/s")
            with bench.attempt(name, "headrace-back:2"):
                _over_link(bench, name, rate, size, disk)


def _over_link(bench: Bench, name: str, rate: int, size: int, disk: float) -> None:
    """disk: bytes a second."""
    cluster = ClusterBench(bench.place, bench.results, bench.scale, bench.repeat, bench.end_at)
    with cluster.lab(2, rate, cache_bytes=4 * size, write="back:2", persist_delay_s=NEVER_S) as lab:
        sample = min(size, 512 * MIB)
        link = sample / raw_seconds(cluster, lab, {(1, 2): sample})
        bench.results.add(name, "sendfile", link / 1e6, unit="MB/s")
        got = _written(bench, os.path.join(lab.mountpoint(1), "large"), size)
        (writer,) = os.listdir(os.path.join(lab.folder(2), "cache", "copies"))
        there = os.path.join(lab.folder(2), "cache", "copies", writer, "tree", "large")
        if bench.worker("check_large", there, size)["wrong"]:
            raise NotRunError("the other node has other bytes")
        bench.results.add(name, "headrace-back:2", got / 1e6, unit="MB/s")
        bench.results.add(
            f"{name}: of the slower of disk and link", "headrace-back:2", got / min(disk, link), unit=""
        )


def _written(bench: Bench, path: str, size: int) -> float:
    """Bytes a second, until close returned."""
    os.sync()
    got = bench.worker("large", path, size)
    if bench.worker("check_large", path, size)["wrong"]:
        raise NotRunError("read back wrong bytes")
    return size / got["seconds"]
