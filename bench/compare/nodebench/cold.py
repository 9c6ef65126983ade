"""Cases 5 to 7: nothing is cached; the mount against downloading first. Each turn has a new cache."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .bench import Bench
from .data import Data, s5cmd
from .headrace_mount import HeadraceMount
from .machine import NotRunError, discard, link, stop

OURS = "headrace-passthrough"
OURS_WHOLE = "headrace load_model"
DOWNLOADERS = ("s5cmd", "obstore")
LINKS = (0, 2)
"""Gbit/s between the server and everybody; 0: as it is, when what limits is the processors that both share."""
EPOCH_LINKS = (0, 1)
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


@dataclass(frozen=True)
class Case:
    """Holds what the mount does in `ours` and the best download in `theirs`, of one object; both give seconds."""

    measure: str
    unit: str
    ours: Callable[[HeadraceMount], float]
    theirs: Callable[[str], float]
    value: Callable[[float], float]
    """Of the seconds, in the unit."""
    ours_whole: Callable[[HeadraceMount], float] | None = None
    """By load_model of ours, where the case is a model."""


def cold_load(bench: Bench) -> None:
    """Case 5, with the server on this machine's own processors, and behind a link of a network's speed: safetensors'
    own loader through the mount, ours on it, and both ways of downloading first."""

    def ours(mount: HeadraceMount) -> float:
        return float(bench.worker("load_model", os.path.join(mount.root, Data.MODEL))["seconds"])

    def whole(mount: HeadraceMount) -> float:
        return float(bench.worker("load_model_whole", os.path.join(mount.root, Data.MODEL))["seconds"])

    def theirs(by: str) -> float:
        return download(bench, Data.MODEL, by=by, load=True)

    _with_each_link(bench, Case("5 cold load", "s", ours, theirs, lambda seconds: seconds, whole))


def first_read(bench: Bench) -> None:
    """Case 6, likewise."""

    def ours(mount: HeadraceMount) -> float:
        return float(bench.worker("sequential", os.path.join(mount.root, Data.BIG), 1)["seconds"])

    def theirs(by: str) -> float:
        return download(bench, Data.BIG, by=by, load=False)

    size = bench.data.big_bytes
    _with_each_link(bench, Case("6 first read", "GB/s", ours, theirs, lambda seconds: size / seconds / 1e9))


def _with_each_link(bench: Bench, case: Case) -> None:
    bench.stop_cached()
    bench.say("  one download that is not measured")
    with bench.attempt(case.measure, "obstore"):
        case.theirs("obstore")
    for gbit in LINKS:
        measure = case.measure + of_link(gbit)
        with bench.attempt(measure, "all"), link(gbit):
            for _ in range(bench.repeat):
                _turn(bench, case, measure)


def _turn(bench: Bench, case: Case, measure: str) -> None:
    with bench.attempt(measure, OURS), bench.up("passthrough") as mount:
        bench.results.add(measure, OURS, case.value(case.ours(mount)), unit=case.unit)
    if case.ours_whole is not None:
        with bench.attempt(measure, OURS_WHOLE), bench.up("passthrough") as mount:
            bench.results.add(measure, OURS_WHOLE, case.value(case.ours_whole(mount)), unit=case.unit)
    for by in DOWNLOADERS:
        with bench.attempt(measure, by):
            bench.results.add(measure, by, case.value(case.theirs(by)), unit=case.unit)


def first_epoch(bench: Bench) -> None:
    """Case 7: `headrace load` in the background, and at once an epoch in shuffled order; with and without a link."""
    bench.stop_cached()
    bench.results.note(f"7: {EPOCH_PROCESSES} reading processes, order shuffled; s5cmd with its 256 workers")
    for gbit in EPOCH_LINKS:
        measure = "7 first epoch" + of_link(gbit)
        with bench.attempt(measure, "all"), link(gbit):
            for turn in range(bench.repeat):
                _epoch_turn(bench, measure, turn)


def _epoch_turn(bench: Bench, measure: str, turn: int) -> None:
    with bench.attempt(measure, OURS), bench.up("passthrough") as mount:
        bench.results.add(measure, OURS, _epoch(bench, mount, turn), unit="s")
    with bench.attempt(measure, "s5cmd"), destination(bench) as folder:
        start = time.perf_counter()
        s5cmd(bench.server, ["cp", f"s3://{bench.server.bucket}/small/*", folder], timeout_s=120)
        bench.results.add(measure, "s5cmd", time.perf_counter() - start, unit="s")


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
