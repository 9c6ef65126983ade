"""1 → 8 nodes: training's AU, samples and origin bytes; bandwidth of checkpoints. Each on a lab made for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from nodebench.machine import NotRunError, Workplace, run, tool
from nodebench.results import Results

from headrace.bench import checkpoints
from headrace.bench.checkpoints import CheckpointPlan
from headrace.lab.lab import Lab, LabPlan

from .disks import Disks

HEADRACE, PLAIN = "headrace", "plain folder"
NODES = (1, 2, 4, 8)
RATE = "100Mbit"
WORKLOAD = "unet3d"
MODEL, CHECKPOINT_SCALE, WRITES = "llama3-8b", 0.001, 3
"""107 MiB a checkpoint of eight ranks."""
DISK_BYTES = 2 << 30


@dataclass(frozen=True)
class Run:
    """Is a run of training. nodes: how many, one after the other. sizes, times: factors. steps: of an epoch."""

    nodes: tuple[int, ...]
    sizes: float
    times: float
    steps: int
    epochs: int
    timeout_s: float
    name: str = ""


SHORT = Run(NODES, sizes=0.002, times=2.0, steps=40, epochs=3, timeout_s=400)
"""7 samples of 0.29 MB a step of 1.27 s: 1.6 MB/s a node."""
LONG = Run((1, 2, 4), sizes=0.001, times=1.0, steps=500, epochs=1, timeout_s=900, name=", 500 steps")
"""As many as the benchmark's rules want, 1.6 MB/s a node as well: what is lost once an epoch, in its first steps,
counts a tenth of what it counts in SHORT."""


@dataclass(frozen=True)
class Setting:
    """Is a setting of checkpoints. disk_bytes_s: of each node's disk, each way. write: the mode of writing."""

    disk_bytes_s: int
    rate_bits_s: int
    write: str


OWN_DISK = Setting(20_000_000, 400_000_000, "local")
WITH_COPIES = Setting(80_000_000, 160_000_000, "back:2")


@dataclass
class Bench:
    place: Workplace
    results: Results
    repeat: int
    scale: float

    def say(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def training(bench: Bench) -> None:
    """`headrace bench compare --nodes N`, Headrace alone. The data set grows with the nodes."""
    _training(bench, SHORT)


def long_training(bench: Bench) -> None:
    """One cold epoch of 500 steps."""
    _training(bench, LONG)


def _training(bench: Bench, training_run: Run) -> None:
    for _ in range(bench.repeat):
        for nodes in training_run.nodes:
            bench.say(f"training{training_run.name}, {nodes} nodes")
            _one_training(bench, training_run, nodes)


def _one_training(bench: Bench, training_run: Run, nodes: int) -> None:
    steps = max(4, round(training_run.steps * bench.scale))
    words = [tool("headrace"), "bench", "compare", WORKLOAD, "--version", "v2.0"]
    words += ["--only", "headrace", "--json"]
    words += ["--nodes", str(nodes), "--rate", RATE, "--work", bench.place.root, "--cache", "4GiB"]
    words += ["--scale-sizes", f"{training_run.sizes:g}", "--scale-times", f"{training_run.times:g}"]
    words += ["--steps", str(steps), "--epochs", str(training_run.epochs)]
    answer = json.loads(run(words, timeout_s=training_run.timeout_s))
    way = answer["ways"][0]
    training: dict[str, Any] | None = way["training"]
    if training is None:
        raise NotRunError(way["not_run"])
    if training["failed"]:
        raise NotRunError(f"{training['failed']} reads failed")
    for epoch in training["epochs"]:
        when = "cold" if epoch["epoch"] == 1 else "cached"
        _add(bench, f"AU, {when}{training_run.name}", nodes, 100 * epoch["au"], "%")
        _add(bench, f"samples, {when}{training_run.name}", nodes, epoch["samples_s"], "a second")
    served = sum(epoch["bytes"] for epoch in way["served"])
    _add(bench, f"origin bytes of data set{training_run.name}", nodes, served / answer["dataset_bytes"], "")


def _add(bench: Bench, measure: str, nodes: int, value: float, unit: str, who: str = HEADRACE) -> None:
    bench.results.add(f"{measure}, {nodes} nodes", who, value, unit=unit)


def checkpoint(bench: Bench) -> None:
    """`headrace bench checkpoint` of eight ranks, on the mounts of 1 to 8 nodes, each with a disk of its own. One node
    also beside a plain folder of such a disk."""
    for turn in range(bench.repeat):
        for nodes in NODES:
            sides = [HEADRACE, PLAIN] if nodes == 1 else [HEADRACE]
            for who in sides if turn % 2 == 0 else reversed(sides):
                _one_checkpoint(bench, "checkpoint", OWN_DISK, nodes, who)


def copies(bench: Bench) -> None:
    """Measure the same where an fsync waits for a copy on another node. Links are the limit; one node has no other."""
    for _ in range(bench.repeat):
        for nodes in NODES[1:]:
            _one_checkpoint(bench, "checkpoint with copies", WITH_COPIES, nodes, HEADRACE)


def _one_checkpoint(bench: Bench, name: str, setting: Setting, nodes: int, who: str) -> None:
    bench.say(f"{name}, {nodes} nodes, {who}")
    with _folders(bench, setting, nodes, who) as folders:
        plan = CheckpointPlan(
            model=MODEL,
            folders=folders,
            scale=CHECKPOINT_SCALE * bench.scale,
            writes=WRITES,
            reads=WRITES,
        )
        result = checkpoints.run(plan, say=lambda line: bench.say(f"  {line}"))
    for turn in result.writes:
        _add(bench, f"{name} written", nodes, turn.bytes_s / 1e6, "MB/s", who)
    for turn in result.reads:
        _add(bench, f"{name} read", nodes, turn.bytes_s / 1e6, "MB/s", who)


@contextmanager
def _folders(bench: Bench, setting: Setting, nodes: int, who: str) -> Iterator[list[tuple[str, list[str]]]]:
    """Return where checkpoints go: one a node, on its own disk."""
    folder = bench.place.folder("disks")
    with ExitStack() as undo:
        bench.place.undo.callback(undo.close)  # a second time, should a signal end the first
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        disks = Disks(folder, undo)
        if who == PLAIN:
            disks.make(os.path.join(folder, "plain"), size_bytes=DISK_BYTES, bytes_s=setting.disk_bytes_s)
            yield [(os.path.join(folder, "plain"), [])]
            return
        data, origin = os.path.join(folder, "lab"), os.path.join(folder, "origin")
        os.makedirs(origin)
        for number in range(1, nodes + 1):
            target = os.path.join(data, f"node-{number}", "cache")
            disks.make(target, size_bytes=DISK_BYTES, bytes_s=setting.disk_bytes_s)
        lab = undo.enter_context(Lab(os.path.join(folder, "lab.json"), progress=lambda _line: None))
        lab.up(
            LabPlan(
                nodes=nodes,
                rate_bits_s=setting.rate_bits_s,
                cache_bytes=DISK_BYTES * 3 // 4,
                origin=origin,
                settings={"write": setting.write},
                folder=data,
                sample=False,
            )
        )
        yield [(_home(lab, number), lab.inside(number)) for number in range(1, nodes + 1)]


def _home(lab: Lab, number: int) -> str:
    """A folder of the node's own in its mount."""
    path = os.path.join(lab.mountpoint(number), f"of-node-{number}")
    os.makedirs(path, exist_ok=True)
    return path
