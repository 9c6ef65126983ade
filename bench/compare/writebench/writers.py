"""Runs in a process of its own: writers, and who reads back what they wrote. Prints one JSON line.

All bytes come out of one random block that is made from a seed, so a reader knows what must be there.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time

MIB = 1 << 20
BLOCK_BYTES = 32 * MIB
WRITE_BYTES = 4 * MIB
SAMPLES = 48
FOLDER_FILES = 1_000


def busy_s() -> float:
    """Processor time of the whole machine since boot: user, nice, system, irq, softirq, steal."""
    with open("/proc/stat") as stat:
        fields = [int(value) for value in stat.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def block() -> memoryview:
    return memoryview(random.Random(11).randbytes(BLOCK_BYTES))


def large(path: str, size: str) -> dict[str, float]:
    """Measure from the open of a new file to the end of its close; fsync before it."""
    source, total = block(), int(size)
    busy, start = busy_s(), time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    done = 0
    while done < total:
        offset = done % BLOCK_BYTES
        done += os.write(fd, source[offset : offset + min(WRITE_BYTES, total - done)])
    written = time.perf_counter() - start
    os.fsync(fd)
    os.close(fd)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "write_s": written, "bytes": done, "busy_s": busy_s() - busy}


def check_large(path: str, size: str) -> dict[str, float]:
    """Samples of it, begin and end among them."""
    source, total = block(), int(size)
    chance = random.Random(5)
    offsets = [0, total - 1, *(chance.randrange(total) for _ in range(SAMPLES))]
    wrong = 0
    with open(path, "rb") as file:
        wrong += os.fstat(file.fileno()).st_size != total
        for offset in offsets:
            block_offset = offset % BLOCK_BYTES
            wanted = source[block_offset : block_offset + min(MIB, total - offset)]
            wrong += os.pread(file.fileno(), len(wanted), offset) != wanted
    return {"wrong": wrong}


def name_of(number: int) -> str:
    return f"d{number // FOLDER_FILES:02d}/f{number:05d}"


def _part(source: memoryview, number: int, size: int) -> memoryview:
    offset = number * 4_099 % (BLOCK_BYTES - size)
    return source[offset : offset + size]


def small(folder: str, count: str, size: str, limit_s: str) -> dict[str, float]:
    """Creates, writes and closes so many files; fewer where the time is up. Folders are made before."""
    source, total, each = block(), int(count), int(size)
    for number in range(0, total, FOLDER_FILES):
        os.makedirs(os.path.join(folder, os.path.dirname(name_of(number))))
    paths = [os.path.join(folder, name_of(number)) for number in range(total)]
    busy, start, done = busy_s(), time.perf_counter(), 0
    for number, path in enumerate(paths):
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, _part(source, number, each))
        os.close(fd)
        done += 1
        if done % 64 == 0 and time.perf_counter() - start > float(limit_s):
            break
    return {"seconds": time.perf_counter() - start, "files": done, "busy_s": busy_s() - busy}


def check_small(folder: str, count: str, size: str) -> dict[str, float]:
    """Every file."""
    source, wrong = block(), 0
    for number in range(int(count)):
        with open(os.path.join(folder, name_of(number)), "rb") as file:
            wrong += file.read() != _part(source, number, int(size))
    return {"wrong": wrong}


def many(folder: str, count: str, size: str, processes: str) -> dict[str, float]:
    """Creates, looks at and removes so many files by so many processes, each in folders of its own. The seconds of
    each step, by the names of `exclusive.py`, are those of the slowest process."""
    total, each, number = int(count) // int(processes), int(size), int(processes)
    with multiprocessing.Pool(number) as pool:
        folders = [os.path.join(folder, f"p{index}") for index in range(number)]
        created = pool.starmap(_create, [(path, total, each) for path in folders], chunksize=1)
        wrong = pool.starmap(_wrong, [(path, total, each) for path in folders], chunksize=1)
        looked = pool.starmap(_stat, [(path, total) for path in folders], chunksize=1)
        removed = pool.starmap(_unlink, [(path, total) for path in folders], chunksize=1)
    steps = {"5 created and closed": max(created), "5 stat": max(looked), "5 unlinked": max(removed)}
    return {"files": total * number, "wrong": sum(wrong), **steps}


def _create(folder: str, count: int, size: int) -> float:
    source = block()
    for number in range(0, count, FOLDER_FILES):
        os.makedirs(os.path.join(folder, os.path.dirname(name_of(number))))
    start = time.perf_counter()
    for number in range(count):
        fd = os.open(os.path.join(folder, name_of(number)), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, _part(source, number, size))
        os.close(fd)
    return time.perf_counter() - start


def _wrong(folder: str, count: int, size: int) -> int:
    return int(check_small(folder, str(count), str(size))["wrong"])


def _stat(folder: str, count: int) -> float:
    start = time.perf_counter()
    for number in range(count):
        os.stat(os.path.join(folder, name_of(number)))
    return time.perf_counter() - start


def _unlink(folder: str, count: int) -> float:
    start = time.perf_counter()
    for number in range(count):
        os.unlink(os.path.join(folder, name_of(number)))
    return time.perf_counter() - start


COMMANDS = {
    "large": large,
    "check_large": check_large,
    "small": small,
    "check_small": check_small,
    "many": many,
}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
