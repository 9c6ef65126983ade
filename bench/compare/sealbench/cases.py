"""Measures small files with a dropped and a warm page cache, a walk, the seal itself, and many versions."""

from __future__ import annotations

import json
import os
import random
import time

from nodebench.cached import idle_rate
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import drop_page_cache, run, tool, unmount

from .bench import Bench

PROCESSES = (1, 2, 8)
FILES_PER_DIRECTORY = 1000
VERSIONS = 100
LIMIT_S = 120
MOUNT_MORE = "mount, more than that of 1,000 files"


def small(bench: Bench) -> None:
    """Files a second and processor time a file, dropped and warm, each round in another order of the contenders."""
    data = bench.small_files()
    chooser = random.Random(5)
    with bench.mounted(data) as roots:
        for turn in range(bench.repeat):
            for processes in PROCESSES:
                for name in chooser.sample(list(roots), len(roots)):
                    with bench.attempt(f"dropped, {processes}", name):
                        drop_page_cache()
                        _read(bench, data.names_path, roots[name], data.small_count, turn, processes, name)
            for name in chooser.sample(list(roots), len(roots)):
                with bench.attempt("warm", name):
                    _warm(bench, data.names_path, roots[name], min(data.small_count, 5000), turn, name)


def _read(bench: Bench, names: str, root: str, count: int, turn: int, processes: int, contender: str) -> None:
    idle = idle_rate()
    answer = bench.worker("files", names, root, count, turn, processes, LIMIT_S)
    busy_s = max(0.0, answer["busy_s"] - idle * answer["seconds"])
    add = bench.results.add
    add(dropped_name(processes), contender, answer["files"] / answer["seconds"], unit="files/s")
    add(processor_name(processes), contender, busy_s / answer["files"] * 1e6, unit="µs a file")


def _warm(bench: Bench, names: str, root: str, count: int, turn: int, contender: str) -> None:
    for processes in (1, 2):
        bench.worker(
            "files", names, root, count, turn, processes, LIMIT_S
        )  # not measured: fills the page cache
        answer = bench.worker("files", names, root, count, turn, processes, LIMIT_S)
        bench.results.add(
            warm_name(processes), contender, answer["files"] / answer["seconds"], unit="files/s"
        )


def dropped_name(processes: int) -> str:
    return f"dropped, {processes} process{'es' * (processes > 1)}"


def processor_name(processes: int) -> str:
    return f"processor time, dropped, {processes} process{'es' * (processes > 1)}"


def warm_name(processes: int) -> str:
    return f"warm, {processes} process{'es' * (processes > 1)}"


def many(bench: Bench) -> None:
    """A million files of a few bytes: the time of a seal of cached files, its size, its mount, and a walk with stat."""
    count = max(1000, round(1_000_000 * bench.scale))
    origin = bench.place.folder("many")
    for number in range(count):
        if number % FILES_PER_DIRECTORY == 0:
            os.makedirs(f"{origin}/d{number // FILES_PER_DIRECTORY:04d}")
        with open(f"{origin}/d{number // FILES_PER_DIRECTORY:04d}/f{number:07d}", "wb") as file:
            file.write(b"%d" % number)
    mount = HeadraceMount(bench.place, f"file://{origin}", io="noopen")
    sealed, few = (os.path.join(bench.place.folder("many-sealed"), name) for name in ("mount", "few"))
    try:
        mount.start()
        bench.say("load")
        run(mount.load_command(""), timeout_s=3000)
        for turn in range(bench.repeat):
            began_s = time.perf_counter()
            row = json.loads(
                run(
                    [tool("headrace"), "seal", mount.mountpoint, "--as", f"many@{turn + 1}", "--json"],
                    timeout_s=1000,
                )
            )
            bench.results.add("seal of cached files", "sealed", time.perf_counter() - began_s, unit="s")
            with os.scandir(f"{mount.cache}/seals/{row['seal']}") as files:
                metadata_bytes = sum(file.stat().st_size for file in files if file.is_file())
            bench.results.add("metadata", "sealed", metadata_bytes / count, unit="B a file")
            run(
                [tool("headrace"), "seal", f"{mount.mountpoint}/d0000", "--as", f"few@{turn + 1}"],
                timeout_s=60,
            )
            few_s = _mount_s(mount, f"few@{turn + 1}", few)
            many_s = _mount_s(mount, row["seal"], sealed)
            bench.results.add("mount, with the start of the command", "sealed", many_s, unit="s")
            bench.results.add(MOUNT_MORE, "sealed", many_s - few_s, unit="s")
        roots = {"plain": origin, "sealed": sealed, mount.name: mount.mountpoint}
        for _ in range(bench.repeat):
            for name, root in roots.items():
                for state in ("dropped", "warm"):
                    with bench.attempt(f"walk, {state}", name):
                        if state == "dropped":
                            drop_page_cache()
                        _walk(bench, name, root, state)
    finally:
        unmount(sealed)
        unmount(few)
        mount.stop()


def _mount_s(mount: HeadraceMount, seal: str, path: str) -> float:
    """Mount a seal, and return the seconds of the command."""
    began_s = time.perf_counter()
    run([tool("headrace"), "seal", "mount", seal, "--at", path, "--cache", mount.cache], timeout_s=60)
    return time.perf_counter() - began_s


def _walk(bench: Bench, name: str, root: str, state: str) -> None:
    answer = bench.worker("walk", root)
    bench.results.add(f"walk, {state}", name, answer["entries"] / answer["seconds"], unit="names/s")


def versions(bench: Bench) -> None:
    """Versions of a data set, each with one file in a hundred replaced: the bytes on the disk, beyond those of an empty
    cache, of the unique bytes."""
    count = max(100, round(2_000 * bench.scale))
    origin = bench.place.folder("versions")
    numbers, unique_bytes = random.Random(7), 0

    def write(number: int) -> int:
        body = numbers.randbytes(110_000)
        with open(f"{origin}/f{number:05d}", "wb") as file:
            return file.write(body)

    unique_bytes += sum(write(number) for number in range(count))
    mount = HeadraceMount(bench.place, f"file://{origin}", io="noopen")
    try:
        mount.start()
        empty_bytes = _used_bytes(mount.cache)
        for version in range(1, VERSIONS + 1):
            if version > 1:
                unique_bytes += sum(write(number) for number in numbers.sample(range(count), count // 100))
                run([tool("headrace"), "sync", mount.mountpoint], timeout_s=60)
            run([tool("headrace"), "seal", mount.mountpoint, "--as", f"v@{version}"], timeout_s=300)
        used_bytes = _used_bytes(mount.cache) - empty_bytes
        bench.results.add(
            f"{VERSIONS} versions", "sealed", used_bytes / unique_bytes, unit="of the unique bytes"
        )
    finally:
        mount.stop()


def _used_bytes(folder: str) -> int:
    return int(run(["du", "-sB1", folder], timeout_s=60).split()[0])
