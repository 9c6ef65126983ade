"""Measures the size of the index while a cache that holds 30 % of the files churns, and the memory of the processes.

    .venv/bin/python bench/micro/index_churn.py [--files 50000] [--minutes 30] [--every 15]

A node on a folder of files of 8 KiB; two readers that open files at random, through the library. Prints a line of JSON
every so many seconds: the index file and what is live in it, anonymous memory of node and readers, files evicted, files
read. Every byte is compared with the origin.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import headrace

FILE_BYTES = 8192
A_FOLDER = 1000


def name_of(number: int) -> str:
    return f"folder-{number // A_FOLDER:04d}/file-{number:07d}"


def make_files(origin: Path, count: int) -> None:
    for number in range(count):
        path = origin / name_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body_of(number))


def body_of(number: int) -> bytes:
    return random.Random(number).randbytes(64) * (FILE_BYTES // 64)


def read(
    socket: str, count: int, seed: int, files_read: multiprocessing.sharedctypes.Synchronized[int]
) -> None:
    chance = random.Random(seed)
    with headrace.connect(socket=socket) as cache:
        while True:
            numbers = [chance.randrange(count) for _ in range(64)]
            for number, part in zip(
                numbers, cache.read_many([f"/{name_of(n)}" for n in numbers]), strict=True
            ):
                assert bytes(part.data) == body_of(number), name_of(number)
            with files_read.get_lock():
                files_read.value += len(numbers)


def anonymous_mib(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("RssAnon")) / 1024


def figures(began_s: float, status: dict, pids: list[int], files_read: int) -> dict[str, object]:
    index = status["index"]
    return {
        "s": round(time.monotonic() - began_s),
        "index_mib": round(index["bytes"] / 2**20, 1),
        "live_mib": round(index["live_bytes"] / 2**20, 1),
        "ratio": round(index["bytes"] / index["live_bytes"], 2),
        "entries": index["entries"],
        "files": index["files"],
        "evicted": status["cache"]["files_evicted"],
        "read": files_read,
        "anonymous_mib": [round(anonymous_mib(pid), 1) for pid in pids],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as base:
        origin, cache = Path(base) / "origin", Path(base) / "cache"
        make_files(origin, given.files)
        config = {
            "cache": [{"folder": str(cache), "capacity_bytes": given.files * FILE_BYTES * 3 // 10}],
            "run_folder": f"{base}/run",
            "mounts": {"/": {"url": str(origin)}},
            "sync_interval_s": 3600.0,
        }
        (Path(base) / "config.json").write_text(json.dumps(config))
        node = subprocess.Popen(
            [sys.executable, "-m", "headrace.node", "--config-json", f"{base}/config.json"]
        )
        readers: list[multiprocessing.Process] = []
        try:
            socket = wait_for_socket(Path(base), node)
            files_read = multiprocessing.Value("q")
            for seed in range(2):
                readers.append(
                    multiprocessing.Process(
                        target=read, args=(socket, given.files, seed, files_read), daemon=True
                    )
                )
                readers[-1].start()
            watch(socket, given, [node.pid, *(reader.pid or 0 for reader in readers)], files_read)
            assert all(reader.is_alive() for reader in readers), "a reader failed"
        finally:
            for reader in readers:
                reader.terminate()
            node.terminate()
            node.wait(60)


def watch(
    socket: str,
    given: argparse.Namespace,
    pids: list[int],
    files_read: multiprocessing.sharedctypes.Synchronized[int],
) -> None:
    from headrace.client.node_client import connect

    client, began_s = connect(socket, patience_s=30), time.monotonic()
    while time.monotonic() - began_s < given.minutes * 60:
        time.sleep(given.every)
        print(json.dumps(figures(began_s, client.status(), pids, files_read.value)), flush=True)
    client.close()


def wait_for_socket(base: Path, node: subprocess.Popen[bytes]) -> str:
    while node.poll() is None:
        for path in base.rglob("*.sock"):
            return str(path)
        time.sleep(0.1)
    raise SystemExit("the node did not start")


if __name__ == "__main__":
    main()
