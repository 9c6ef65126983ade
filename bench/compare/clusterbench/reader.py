"""A process that reads files of a mount and checks every byte's sum. Prints one line of JSON.

Words: the mountpoint, a file of JSON (name → size and CRC-32), threads, and a file that it waits for to begin, so that
several begin at once. A line `half` on standard output says that half of the files are read.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

READ_BYTES = 1 << 20


def read(path: str, size: int, crc: int) -> tuple[float, bool, str]:
    """Seconds, whether the bytes are right, and the error when there was one."""
    began_s, checksum, length = time.perf_counter(), 0, 0
    try:
        with open(path, "rb", buffering=0) as source:
            while part := source.read(READ_BYTES):
                checksum, length = zlib.crc32(part, checksum), length + len(part)
    except OSError as error:
        return time.perf_counter() - began_s, True, f"{type(error).__name__} {error.errno}"
    return time.perf_counter() - began_s, (length, checksum) == (size, crc), ""


def main() -> None:
    mountpoint, names, threads, gate = sys.argv[1:5]
    with open(names) as source:
        wanted = json.load(source)
    print("ready", flush=True)
    while not os.path.exists(gate):
        time.sleep(0.002)
    lock, left = threading.Lock(), [len(wanted) // 2]

    def one(item: tuple[str, list[int]]) -> tuple[float, bool, str]:
        answer = read(os.path.join(mountpoint, item[0]), *item[1])
        with lock:
            left[0] -= 1
            if left[0] == 0:
                print("half", flush=True)
        return answer

    began_s = time.perf_counter()
    with ThreadPoolExecutor(int(threads)) as pool:
        answers = list(pool.map(one, wanted.items()))
    took_s = time.perf_counter() - began_s
    errors = [error for _, _, error in answers if error]
    times = sorted(seconds for seconds, _, _ in answers)
    said = {
        "seconds": took_s,
        "processor_s": time.process_time(),
        "files": len(answers),
        "bytes": sum(size for size, _ in wanted.values()),
        "failed": len(errors),
        "wrong": sum(not right for _, right, _ in answers),
        "errors": sorted(set(errors)),
        "p99_s": times[min(len(times) - 1, int(len(times) * 0.99))],
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
