"""Measures what an open costs another user, whose descriptors the node hands out; and the reads after it.

Needs root and /dev/fuse. A node of root's with everything cached; programs of uid 65534 and of root, one after the
other, in rounds. Prints JSON: microseconds by round, for each way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FILES, FILE_BYTES, LARGE_BYTES = 500, 4096, 64 << 20
PROGRAM = """
import concurrent.futures.thread, ctypes, hashlib, json, mmap, os, random, sys, time
import headrace, headrace.sdk.cache, headrace.sdk.brokered_bulk_read, headrace.vfs.brokered.broker_registry
uid, socket, mount, opens = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
cache = headrace.connect(socket=socket)
names = [f"/d/{number}" for number in range(FILES)]

def each(call, count):
    took = []
    for number in range(count):
        began = time.perf_counter_ns()
        closing = call(names[number % len(names)])
        took.append(time.perf_counter_ns() - began)
        closing()
    took.sort()
    return took[len(took) // 2] / 1e3

def by_mount(name):
    fd = os.open(mount + name, os.O_RDONLY)
    return lambda: os.close(fd)

def many():
    began = time.perf_counter_ns()
    for part in cache.read_many(names):
        assert len(part.data) == FILE_BYTES
    return (time.perf_counter_ns() - began) / 1e3 / len(names)

def sequential():
    content = cache.content("/large")
    began = time.perf_counter_ns()
    for start in range(0, content.size_bytes, 1 << 20):
        content.read(start, start + (1 << 20))
    took = time.perf_counter_ns() - began
    content.close()
    return content.size_bytes / took

each(lambda name: cache.content(name).close, 200)
sequential()
print(json.dumps({
    "open": each(lambda name: cache.content(name).close, opens),
    "open by the mount": each(by_mount, opens),
    "a file of read_many, opened and read": min(many() for _ in range(5)),
    "sequential GB/s": max(sequential() for _ in range(5)),
}))
"""


def measure(base: Path, rounds: int, opens: int) -> dict[str, list[dict[str, float]]]:
    origin, mount = base / "origin", base / "mnt"
    (origin / "d").mkdir(parents=True)
    mount.mkdir()
    chance = random.Random(1)
    for number in range(FILES):
        (origin / f"d/{number}").write_bytes(chance.randbytes(FILE_BYTES))
    (origin / "large").write_bytes(chance.randbytes(LARGE_BYTES))
    environment = os.environ | {"HEADRACE_RUN_FOLDER": str(base / "run")}
    command = [sys.executable, "-m", "headrace"]
    words = ["up", str(origin), str(mount), "--cache", f"{base}/cache:2GiB", "--allow-other", "--detach"]
    subprocess.run([*command, *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([*command, "load", "/"], env=environment, check=True, stdout=subprocess.DEVNULL)
        (socket,) = (base / "run").glob("*.sock")
        results: dict[str, list[dict[str, float]]] = {"another user": [], "root": []}
        program = f"FILES, FILE_BYTES = {FILES}, {FILE_BYTES}{PROGRAM}"
        for _ in range(rounds):
            for who, uid in (("another user", 65534), ("root", 0)):
                given = [str(uid), str(socket), str(mount), str(opens)]
                ended = subprocess.run(
                    [sys.executable, "-c", program, *given],
                    env=environment,
                    check=True,
                    stdout=subprocess.PIPE,
                )
                results[who].append(json.loads(ended.stdout))
        return results
    finally:
        subprocess.run([*command, "down", str(mount)], env=environment, check=True, stdout=subprocess.DEVNULL)


def summary(results: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        who: {
            name: {
                "median": round(statistics.median(row[name] for row in rows), 2),
                "all": sorted(round(row[name], 2) for row in rows),
            }
            for name in rows[0]
        }
        for who, rows in results.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--opens", type=int, default=2000)
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="headrace-broker-"))
    base.chmod(0o755)
    try:
        print(json.dumps(summary(measure(base, given.rounds, given.opens)), indent=1))
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
