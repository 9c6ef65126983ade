"""Cases 5 to 7: nothing is cached; the mount against downloading first. Each turn has a new cache."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .bench import Bench
from .data import Data, s5cmd
from .headrace_mount import HeadraceMount
from .machine import NotRunError, discard, link, stop, touch_memory

OURS = "headrace-passthrough"
DOWNLOADERS = ("s5cmd", "obstore")
LINKS = (0, 2)
"""Gbit/s between the server and everybody; 0: as it is, when what limits is the processors that both share."""
EPOCH_PROCESSES = 2
EPOCH_LIMIT_S = 90
S5CMD_PARTS = ["-c", "16", "-p", "8"]


@contextmanager
def destination(bench: Bench) -> Iterator[str]:
    folder = bench.place.folder("download")
    try:
        yield folder
    finally:
        discard(folder)


def of_link(gbit: int) -> str:
    return f", link of {gbit} Gbit/s" if gbit else ""


def download(bench: Bench, key: str, *, by: str, load: bool) -> float:
    """Seconds to bring one object to the disk, and to load it where asked."""
    with destination(bench) as folder:
        path = os.path.join(folder, "object")
        if by == "obstore":
            config = {"bucket": bench.server.bucket, "endpoint": bench.server.endpoint}
            config |= {"region": "us-east-1", **bench.server.options()}
            then = "load" if load else "stop"
            return float(bench.worker("download", json.dumps(config), key, path, then)["seconds"])
        start = time.perf_counter()
        words = ["cp", *S5CMD_PARTS, f"s3://{bench.server.bucket}/{key}", path]
        s5cmd(bench.server, words, timeout_s=120)
        seconds = time.perf_counter() - start
        return seconds + (bench.worker("load_model", path)["seconds"] if load else 0.0)


def cold_load(bench: Bench) -> None:
    """Case 5, with the server on this machine's own processors, and behind a link of a network's speed."""
    bench.stop_cached()
    bench.say("  one download that is not measured")
    with bench.attempt("5 cold load", "obstore"):
        download(bench, Data.MODEL, by="obstore", load=False)
    for gbit in LINKS:
        measure = "5 cold load" + of_link(gbit)
        with bench.attempt(measure, "all"), link(gbit):
            for _ in range(bench.repeat):
                _cold_load_turn(bench, measure)


def _cold_load_turn(bench: Bench, measure: str) -> None:
    with bench.attempt(measure, OURS), bench.up("passthrough") as mount:
        touch_memory()
        got = bench.worker("load_model", os.path.join(mount.root, Data.MODEL))
        bench.results.add(measure, OURS, got["seconds"], unit="s")
    for by in DOWNLOADERS:
        with bench.attempt(measure, by):
            touch_memory()
            bench.results.add(measure, by, download(bench, Data.MODEL, by=by, load=True), unit="s")


def first_read(bench: Bench) -> None:
    """Case 6, likewise."""
    bench.stop_cached()
    with bench.attempt("6 first read", "obstore"):
        download(bench, Data.BIG, by="obstore", load=False)
    for gbit in LINKS:
        measure = "6 first read" + of_link(gbit)
        with bench.attempt(measure, "all"), link(gbit):
            for _ in range(bench.repeat):
                _first_read_turn(bench, measure)


def _first_read_turn(bench: Bench, measure: str) -> None:
    size = bench.data.big_bytes
    with bench.attempt(measure, OURS), bench.up("passthrough") as mount:
        touch_memory()
        got = bench.worker("sequential", os.path.join(mount.root, Data.BIG), 1)
        bench.results.add(measure, OURS, size / got["seconds"] / 1e9, unit="GB/s")
    for by in DOWNLOADERS:
        with bench.attempt(measure, by):
            touch_memory()
            seconds = download(bench, Data.BIG, by=by, load=False)
            bench.results.add(measure, by, size / seconds / 1e9, unit="GB/s")


def first_epoch(bench: Bench) -> None:
    """Case 7: `headrace load` in the background, and at once an epoch in shuffled order."""
    bench.stop_cached()
    bench.results.note("5-7: some GiB of memory are touched before each turn: see machine.touch_memory")
    bench.results.note(f"7: {EPOCH_PROCESSES} reading processes, order shuffled; s5cmd with its 256 workers")
    for turn in range(bench.repeat):
        with bench.attempt("7 first epoch", OURS), bench.up("passthrough") as mount:
            touch_memory()
            bench.results.add("7 first epoch", OURS, _epoch(bench, mount, turn), unit="s")
        with bench.attempt("7 first epoch", "s5cmd"), destination(bench) as folder:
            touch_memory()
            start = time.perf_counter()
            s5cmd(bench.server, ["cp", f"s3://{bench.server.bucket}/small/*", folder], timeout_s=120)
            bench.results.add("7 first epoch", "s5cmd", time.perf_counter() - start, unit="s")


def _epoch(bench: Bench, mount: HeadraceMount, turn: int) -> float:
    log = bench.place.log("load")
    start = time.perf_counter()
    loading = subprocess.Popen(
        mount.load_command("small"),
        stdout=log,
        stderr=log,
        env=mount.environment(),
        start_new_session=True,
    )
    os.close(log)
    try:
        count = bench.data.small_count
        words = ("files", bench.data.names_path, mount.root, count, turn, EPOCH_PROCESSES, EPOCH_LIMIT_S)
        got = bench.worker(*words, timeout_s=EPOCH_LIMIT_S + 60)
        seconds = time.perf_counter() - start
        if loading.poll() not in (None, 0):
            raise NotRunError(f"headrace load failed: {bench.place.log_tail('load')}")
    finally:
        stop(loading)
    if got["files"] < count:
        raise NotRunError(f"only {got['files']:.0f} of {count} files in {EPOCH_LIMIT_S} s")
    return seconds
