"""A cold epoch through a lazy seal beside one through the mount.

Each begins with an empty cache, and all names are listed before. The origin is a directory: no other one answers
faster, so what a layer adds weighs most here.
"""

from __future__ import annotations

import os

from nodebench.data import Data
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import drop_page_cache, run, tool, unmount

from .bench import Bench

LIMIT_S = 300
PROCESSES = (2, 8)
WAYS = ("headrace-noopen", "lazy")


def cold_name(processes: int) -> str:
    return f"cold epoch, {processes} processes"


def lazy(bench: Bench) -> None:
    """Files a second of both ways in turn, each round in the other order."""
    data = bench.small_files()
    for turn in range(bench.repeat):
        for processes in PROCESSES:
            for way in WAYS if turn % 2 else reversed(WAYS):
                with bench.attempt(cold_name(processes), way):
                    rate = _cold_epoch(bench, data, processes, is_lazy=way == "lazy")
                    bench.results.add(cold_name(processes), way, rate, unit="files/s")


def _cold_epoch(bench: Bench, data: Data, processes: int, *, is_lazy: bool) -> float:
    mount = HeadraceMount(bench.place, f"file://{data.root}", io="noopen")
    root = os.path.join(bench.place.folder("lazy"), "mount") if is_lazy else mount.root
    try:
        mount.start()
        run(["find", mount.root, "-type", "f"], timeout_s=LIMIT_S)
        if is_lazy:
            words = ["seal", mount.mountpoint, "--as", "bench@1", "--at", root, "--lazy"]
            run([tool("headrace"), *words], timeout_s=LIMIT_S)
            run(["find", root, "-type", "f"], timeout_s=LIMIT_S)
        drop_page_cache()
        words = ["files", data.names_path, root, str(data.small_count), "1", str(processes), str(LIMIT_S)]
        answer = bench.worker(*words, timeout_s=LIMIT_S + 60)
        if answer["files"] != data.small_count:
            raise ValueError(f"{answer['files']} of {data.small_count} files were read")
        return float(answer["files"] / answer["seconds"])
    finally:
        if is_lazy:
            unmount(root)
        mount.stop()
