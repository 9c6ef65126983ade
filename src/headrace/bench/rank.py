"""One simulated accelerator: a process that loads batches and sleeps. `python -m headrace.bench.rank PLAN NUMBER`.

The accelerators of a run wait for each other after each step, as those of a real one do in their all-reduce (and DLIO's
in its MPI barrier), also over many hosts. The first one of a host speaks with the process that started it, a line of
JSON each way at the beginning and the end of an epoch, in which that one drops the page cache and reads its counters.
The first of all writes what they measured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import msgspec

from headrace.bench.barrier import Barrier
from headrace.bench.loader_spec import TENSORFLOW, LoaderSpec, RankPlan
from headrace.bench.loaders import loader
from headrace.bench.metrics import EpochTimes
from headrace.bench.processor import children, processor_s


def main() -> int:
    path, local = sys.argv[1], int(sys.argv[2])
    with open(path, "rb") as source:
        plan = msgspec.json.decode(source.read(), type=RankPlan)
    feed = msgspec.structs.replace(plan.feed, rank=plan.first + local)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    meeting = Barrier(plan.meet, feed.rank, feed.world)
    made, order = _loader(feed)
    mine: list[dict[str, Any]] = []
    for epoch in range(1, plan.epochs + 1):
        meeting.wait()
        if local == 0:
            _tell({"ready": epoch})
        meeting.wait()
        order.set_epoch(epoch)
        mine.append(msgspec.to_builtins(run_epoch(made, feed, plan.compute_s, meeting)))
        meeting.wait()
        if local == 0:
            _tell({"done": epoch})
    gathered = meeting.gather(mine)
    meeting.close()
    if gathered is not None:
        with open(plan.out, "w") as out:
            json.dump(gathered, out)
    return 0


def run_epoch(made: Any, feed: LoaderSpec, compute_s: float, meeting: Barrier) -> EpochTimes:
    load, compute, steps = [], [], []
    sizes, failed, why = [], 0, ""
    used_s = processor_s([os.getpid(), *children()])
    begin = asked = time.perf_counter()
    for batch in made:
        loaded = time.perf_counter()
        time.sleep(compute_s)
        done = time.perf_counter()
        load.append(loaded - asked)
        compute.append(done - loaded)
        steps.append(done - asked)
        sizes.append(batch.bytes_read)
        failed, why = failed + batch.failed, why or batch.why
        del batch
        meeting.wait()
        asked = time.perf_counter()
        if len(steps) == feed.steps:
            break  # what a loader then puts away is not the epoch's, nor DLIO's
    if why:
        sys.stderr.write(f"accelerator {feed.rank}: {failed} reads failed, the first by {why}\n")
    return EpochTimes(
        load_s=load,
        compute_s=compute,
        step_s=steps,
        wall_s=asked - begin,
        bytes_read=sum(sizes),
        first_bytes=sizes[0],
        failed=failed,
        processor_s=processor_s([os.getpid(), *children()]) - used_s,
    )


def _loader(feed: LoaderSpec) -> tuple[Any, Any]:
    """What gives batches, and what has `set_epoch`."""
    if feed.loader == TENSORFLOW:
        from headrace.bench.tensorflow_loader import TensorFlowRecords

        made = TensorFlowRecords(feed)
        return made, made
    return loader(feed)


def _tell(what: dict[str, Any]) -> None:
    """And wait for the answer."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        os._exit(1)  # who started us has gone


if __name__ == "__main__":
    sys.exit(main())
