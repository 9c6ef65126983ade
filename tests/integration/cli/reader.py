"""Reads files of a mount and holds every byte against a folder: `reader.py MODE MOUNT TRUTH NAME…`.

A line of JSON a file: how many bytes came, the error that ended it, where they were wrong (-1: nowhere). MODE: read,
mmap; or "loop SEED", which reads at random places until its stdin ends, trying again after errors, and prints one line.
Uses nothing of headrace's.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import select
import sys
import time
from collections import Counter
from typing import Any

STEP_BYTES = 1 << 20
PAUSE_S = 0.002
"""Between two rounds of a loop: what it reads against needs the processors, too."""
ROUNDS_LEAST = 25
"""Rounds of a loop whose stdin ends early, as on a busy machine."""


def read_one(mode: str, path: str, truth: str) -> dict[str, Any]:
    done, wrong, error = 0, -1, ""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            with open(truth, "rb") as expected:
                if mode == "mmap":
                    done, wrong = compare_map(fd, expected.read())
                else:
                    while part := os.read(fd, STEP_BYTES):
                        if wrong < 0 and part != expected.read(len(part)):
                            wrong = done
                        done += len(part)
        finally:
            os.close(fd)
    except OSError as failure:
        error = errno.errorcode.get(failure.errno or 0, str(failure))
    return {"name": "", "bytes": done, "error": error, "wrong": wrong}


def compare_map(fd: int, expected: bytes) -> tuple[int, int]:
    size = os.fstat(fd).st_size
    if size == 0:
        return 0, -1
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
        for start in range(0, size, STEP_BYTES):
            part = view[start : start + STEP_BYTES]
            if part != expected[start : start + STEP_BYTES]:
                return size, start
    return size, -1


def loop(seed: int, mount: str, truth: str, names: list[str]) -> None:
    """Half of the rounds read by read(), half by mmap of a file that was read whole before."""
    chance = random.Random(seed)
    expected = {}
    for name in names:
        with open(os.path.join(truth, name), "rb") as source:
            expected[name] = source.read()
    errors: Counter[str] = Counter()
    rounds = total = 0
    wrong: list[str] = []
    waited_s_max = 0.0
    while rounds < ROUNDS_LEAST or not select.select([sys.stdin], [], [], 0)[0]:
        name = chance.choice(names)
        began = time.monotonic()
        try:
            got, offset = one_round(chance, os.path.join(mount, name), expected[name])
            total += got
            if offset >= 0:
                wrong.append(f"{name} at {offset}")
        except OSError as failure:
            errors[errno.errorcode.get(failure.errno or 0, str(failure))] += 1
            time.sleep(0.01)
        rounds += 1
        waited_s_max = max(waited_s_max, time.monotonic() - began)
        time.sleep(PAUSE_S)
    row = {"rounds": rounds, "bytes": total, "errors": errors, "wrong": wrong, "waited_s_max": waited_s_max}
    print(json.dumps(row))


def one_round(chance: random.Random, path: str, expected: bytes) -> tuple[int, int]:
    """Bytes compared, and where they were wrong."""
    fd = os.open(path, os.O_RDONLY)
    try:
        how = chance.randrange(3)
        if how == 0:  # all of it, in order
            done = 0
            while part := os.read(fd, STEP_BYTES):
                if part != expected[done : done + len(part)]:
                    return done, done
                done += len(part)
            return done, -1 if done == len(expected) else done
        if how == 1:  # a piece of it
            start = chance.randrange(len(expected))
            part = os.pread(fd, chance.randrange(1, 2 * STEP_BYTES), start)
            return len(part), -1 if part and part == expected[start : start + len(part)] else start
        done = 0  # mapped; read first, for a fault that fails is SIGBUS
        while part := os.read(fd, STEP_BYTES):
            done += len(part)
        return compare_map(fd, expected)
    finally:
        os.close(fd)


def main() -> int:
    mode, mount, truth, *names = sys.argv[1:]
    if mode.startswith("loop"):
        loop(int(mode[4:]), mount, truth, names)
        return 0
    for name in names:
        row = read_one(mode, os.path.join(mount, name), os.path.join(truth, name))
        print(json.dumps(row | {"name": name}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
