"""One job on eight nodes: which share of its reads the reader's own disk serves, and what goes over the network.

A lab of eight nodes with an object store of its own, in a network namespace each, links not shaped. Rank r reads by the
mount of node r, with torch's DistributedSampler, which shuffles anew in each epoch. The cache of each node has room for
all files, and is empty in the beginning. Each contender has a new lab.

Before each read a rank looks whether its own disk has the file, and it compares all bytes with what was put at the
origin. The bytes over the network are those that the nodes read from the origin and from each other. What is fetched
for an epoch that never comes counts, too: a plan does not know which epoch is the last.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clusterbench.bench import Bench as ClusterBench
from clusterbench.bench import Files, grown
from nodebench.machine import NotRunError, kill_group, tool, wait_until

from headrace.client.connection import Connection
from headrace.lab.lab import Lab
from headrace.wire.messages import Report, StatusAsk

from .cases import Bench

NODES, EPOCHS = 8, 3
FILES, FILE_BYTES = 2000, 100_000
BATCH, STEP_S = 8, 1.0
CACHE_BYTES = 2 << 30
CONTENDERS = ("plan", "no plan")
OWN = "reads served by the reader's own disk"
OWN_LEAST = "the same, of the rank that has least"
NETWORK = "bytes over the network, in data sets"
ORIGIN = "bytes from the origin, in data sets"
READ_S = "longest time of a rank in its reads"
PLANNED, EVICTED = "files fetched for the plan", "files evicted"
WRONG = "reads whose bytes are not the origin's"
ALL_EPOCHS = "all epochs"
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
READY_WITHIN_S, SETTLED_WITHIN_S = 120.0, 60.0
Counts = dict[str, float]


def nodes(bench: Bench) -> None:
    count = max(2 * NODES * BATCH, round(FILES * bench.scale))
    cluster = ClusterBench(bench.place, bench.results, bench.scale, bench.repeat, time.monotonic() + 3600)
    bench.results.note(
        f"nodes: {count} files of {FILE_BYTES} bytes, {NODES} ranks, batch {BATCH}, a step of {STEP_S:g} s"
    )
    for _ in range(bench.repeat):
        for contender in CONTENDERS:
            with (
                bench.attempt(OWN, contender),
                cluster.lab(NODES, 0, cache_bytes=CACHE_BYTES, predict_reads="false") as lab,
            ):
                files = cluster.put(lab, "train", count, FILE_BYTES)
                run_job(bench, lab, files, contender)


def run_job(bench: Bench, lab: Lab, files: Files, contender: str) -> None:
    """Run all epochs, and add what they measured."""
    size = sum(size for size, _ in files.values())
    job = Job(bench, lab, files, contender)
    with job.running(), connected(lab) as nodes:
        first = before = counts_of(nodes)
        for epoch in range(EPOCHS):
            job.begin(epoch)
            ranks = job.epoch()
            after = counts_of(nodes)
            add(bench, contender, f"epoch {epoch + 1}", ranks, grown(before, after), size)
            before = after
        job.wait()
        total = grown(first, settled(nodes))
    bench.results.add(f"{NETWORK}: {ALL_EPOCHS}", contender, total["network_bytes"] / size, unit="data sets")
    bench.results.add(f"{ORIGIN}: {ALL_EPOCHS}", contender, total["origin_bytes"] / size, unit="data sets")
    bench.results.add(PLANNED, contender, total["files_planned"], unit="files")
    bench.results.add(EVICTED, contender, total["files_evicted"], unit="files")


def add(
    bench: Bench, contender: str, epoch: str, ranks: list[dict[str, Any]], network: Counts, size: int
) -> None:
    """Add an epoch. network: what its nodes counted. size: the bytes of the data set."""
    add_value = bench.results.add
    own = sum(rank["own"] for rank in ranks) / sum(rank["opens"] for rank in ranks)
    data_sets = network["network_bytes"] / size
    bench.say(f"  {contender}, {epoch}: own disk {own:.3f}, network {data_sets:.3f} data sets")
    add_value(f"{OWN}: {epoch}", contender, own, unit="share")
    least = min(rank["own"] / rank["opens"] for rank in ranks)
    add_value(f"{OWN_LEAST}: {epoch}", contender, least, unit="share")
    add_value(f"{NETWORK}: {epoch}", contender, data_sets, unit="data sets")
    add_value(f"{ORIGIN}: {epoch}", contender, network["origin_bytes"] / size, unit="data sets")
    add_value(f"{READ_S}: {epoch}", contender, max(rank["read_s"] for rank in ranks), unit="s")
    add_value(WRONG, contender, sum(rank["wrong"] for rank in ranks), unit="reads")


class Job:
    """The ranks of a job, one on each node."""

    def __init__(self, bench: Bench, lab: Lab, files: Files, contender: str) -> None:
        self._bench = bench
        self._lab = lab
        self._folder = bench.place.folder("job")
        self._sums = os.path.join(self._folder, "sums.json")
        self._gate = os.path.join(self._folder, "go")
        self._is_planned = contender == "plan"
        self._ranks: list[subprocess.Popen[str]] = []
        with open(self._sums, "w") as out:
            json.dump({os.path.basename(name): sums for name, sums in files.items()}, out)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all ranks, and wait until they are ready. End those that are left."""
        try:
            for number in self._lab.record.nodes:
                self._ranks.append(self._start(number))
            for rank in self._ranks:
                if line_of(rank) != "ready":
                    raise NotRunError(f"a rank is not ready: {self._bench.place.log_tail('ranks')}")
            yield
        finally:
            for rank in self._ranks:
                kill_group(rank)

    def _start(self, number: int) -> subprocess.Popen[str]:
        lab, folder = self._lab, self._lab.folder(number)
        before = [tool("headrace"), "run", "--cache", os.path.join(folder, "cache"), "--"]
        train = os.path.join(lab.mountpoint(number), "train")
        words = [tool("python"), RANK, train, self._sums, str(BATCH), str(STEP_S), str(EPOCHS), self._gate]
        own = {"RANK": str(number - 1), "WORLD_SIZE": str(NODES), "OMP_NUM_THREADS": "1"}
        log = self._bench.place.log("ranks")
        try:
            return subprocess.Popen(
                [*(before if self._is_planned else []), *words],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**lab.environment(number), **own},
                start_new_session=True,
            )
        finally:
            os.close(log)

    def begin(self, epoch: int) -> None:
        open(f"{self._gate}{epoch}", "w").close()

    def epoch(self) -> list[dict[str, Any]]:
        """Return what each rank measured in the epoch that has begun, when all have ended it."""
        lines = [line_of(rank) for rank in self._ranks]
        if not all(lines):
            raise NotRunError(f"a rank ended: {self._bench.place.log_tail('ranks')}")
        return [json.loads(line) for line in lines]

    def wait(self) -> None:
        for rank in self._ranks:
            rank.wait(READY_WITHIN_S)


def line_of(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()


@contextmanager
def connected(lab: Lab) -> Iterator[list[Connection]]:
    """Yield a connection to each node: its counts are there at once."""
    connections: list[Connection] = []
    try:
        for number in lab.record.nodes:
            connections.append(Connection(lab.report(number)["node"]["socket"], role="cli"))
        yield connections
    finally:
        for connection in connections:
            connection.close()


def counts_of(nodes: list[Connection]) -> Counts:
    """Return the counts of all nodes together."""
    total = dict.fromkeys(("network_bytes", "origin_bytes", "files_planned", "files_evicted"), 0.0)
    for node in nodes:
        answer = node.ask(StatusAsk())
        assert isinstance(answer, Report)
        status = answer.status
        origin, peers = status["origin"]["bytes_read"], status["peers"]["bytes_read"]
        moved = status["rebalance"]["bytes_handed_over"] + status["copies"]["bytes_made"]
        total["network_bytes"] += origin + peers + moved
        total["origin_bytes"] += origin
        total["files_planned"] += status["plans"]["files_fetched"]
        total["files_evicted"] += status["cache"]["files_evicted"]
    return total


def settled(nodes: list[Connection]) -> Counts:
    """Return the counts when no node fetches any more."""

    def is_idle() -> bool:
        nonlocal last
        before, last = last, counts_of(nodes)
        time.sleep(0.5)  # between two looks
        return before == last

    last: Counts = {}
    wait_until(is_idle, timeout_s=SETTLED_WITHIN_S, name="the end of all fetches")
    return last
