"""Simulate one accelerator: a process that loads batches and sleeps. `python -m headrace.bench.rank PLAN NUMBER`.

The accelerators of a run wait for each other after each step, also on many hosts. Real ones do so in their all-reduce,
and DLIO's in its MPI barrier.

The first one of a host exchanges a line of JSON with the process that started it, before and after each epoch. That
process then drops the page cache and reads its counters. The first accelerator of all writes the measurements.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.printable import printable
from headrace.bench.barrier import Barrier
from headrace.bench.loader_spec import TENSORFLOW, LoaderSpec, RankPlan
from headrace.bench.loaders import loader
from headrace.bench.metrics import EpochTimes
from headrace.bench.processor import children, processor_s


def main() -> int:
    path, local = sys.argv[1], int(sys.argv[2])
    with open(path, "rb") as source:
        plan = decode_json(source.read(), RankPlan)
    feed = msgspec.structs.replace(plan.feed, rank=plan.first + local)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    barrier = Barrier(plan.meet, feed.rank, feed.world)
    batches, order = _loader(feed)
    mine: list[dict[str, Any]] = []
    for epoch in range(1, plan.epochs + 1):
        barrier.wait()
        if local == 0:
            _report({"ready": epoch})
        barrier.wait()
        order.set_epoch(epoch)
        mine.append(msgspec.to_builtins(run_epoch(batches, feed, plan.compute_s, barrier)))
        barrier.wait()
        if local == 0:
            _report({"done": epoch})
    gathered = barrier.gather(mine)
    barrier.close()
    if gathered is not None:
        with open(plan.out, "w") as out:
            json.dump(gathered, out)
    return 0


def run_epoch(batches: Any, feed: LoaderSpec, compute_s: float, barrier: Barrier) -> EpochTimes:
    load, compute, steps = [], [], []
    sizes, failed, why = [], 0, ""
    used_s = processor_s([os.getpid(), *children()])
    start_s = requested_s = time.perf_counter()
    for batch in batches:
        loaded_s = time.perf_counter()
        time.sleep(compute_s)
        computed_s = time.perf_counter()
        load.append(loaded_s - requested_s)
        compute.append(computed_s - loaded_s)
        steps.append(computed_s - requested_s)
        sizes.append(batch.bytes_read)
        failed, why = failed + batch.failed, why or batch.why
        del batch
        barrier.wait()
        requested_s = time.perf_counter()
        if len(steps) == feed.steps:
            break  # a loader's cleanup does not count for the epoch, nor for DLIO
    if why:
        sys.stderr.write(f"accelerator {feed.rank}: {failed} reads failed, the first by {printable(why)}\n")
    return EpochTimes(
        load_s=load,
        compute_s=compute,
        step_s=steps,
        wall_s=requested_s - start_s,
        bytes_read=sum(sizes),
        first_bytes=sizes[0],
        failed=failed,
        processor_s=processor_s([os.getpid(), *children()]) - used_s,
    )


def _loader(feed: LoaderSpec) -> tuple[Any, Any]:
    """Return the iterable of batches, and the object that has `set_epoch`."""
    if feed.loader == TENSORFLOW:
        from headrace.bench.tensorflow_loader import TensorFlowRecords

        batches = TensorFlowRecords(feed)
        return batches, batches
    return loader(feed)


def _report(event: dict[str, Any]) -> None:
    """Write an event and wait for the reply."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        os._exit(1)  # the process that started this one has ended


if __name__ == "__main__":
    sys.exit(main())
