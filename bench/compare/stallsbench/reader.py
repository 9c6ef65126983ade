"""Reads folders of a mount and says how long each call took: `reader.py MOUNT TRUTH THREADS BETWEEN_S FOLDER…`.

Each folder is listed, and each file in it looked up, opened, and read in steps; every byte is held against the truth.
A line of JSON for each call that took SLOW_S or longer, and one at the end. Uses nothing of headrace's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

SLOW_S = 0.25
STEP_BYTES = 1 << 20

Result = TypeVar("Result")


class Reader:
    def __init__(self, mount: str, truth: str, folders: list[str], *, between_s: float) -> None:
        self._mount = mount
        self._between_s = between_s
        self._truth = truth
        self._folders: SimpleQueue[str] = SimpleQueue()
        for folder in folders:
            self._folders.put(folder)
        self.calls: Counter[str] = Counter()
        self.errors: list[str] = []
        self.longest_s: dict[str, float] = {}
        self.bytes_read = 0

    def run(self) -> None:
        while True:
            try:
                folder = self._folders.get_nowait()
            except Empty:
                return
            try:
                self._read_folder(folder)
            except OSError as error:
                self.errors.append(f"{folder}: {error}")

    def _read_folder(self, folder: str) -> None:
        for name in sorted(self._timed("list", folder, lambda: os.listdir(f"{self._mount}/{folder}"))):
            path = f"{folder}/{name}"
            try:
                self._timed("stat", path, lambda path=path: os.stat(f"{self._mount}/{path}"))
                self._read_file(path)
            except OSError as error:
                self.errors.append(f"{path}: {error}")
            time.sleep(self._between_s)

    def _read_file(self, path: str) -> None:
        file = self._timed("open", path, lambda: os.open(f"{self._mount}/{path}", os.O_RDONLY))
        try:
            with open(f"{self._truth}/{path}", "rb") as truth:
                while True:
                    body = self._timed("read", path, lambda: os.read(file, STEP_BYTES))
                    if body != truth.read(len(body) or 1):
                        self.errors.append(f"{path}: other bytes")
                        return
                    if not body:
                        return
                    self.bytes_read += len(body)
        finally:
            os.close(file)

    def _timed(self, call: str, path: str, do: Callable[[], Result]) -> Result:
        began_s = time.monotonic()
        try:
            return do()
        finally:
            took_s = time.monotonic() - began_s
            self.calls[call] += 1
            self.longest_s[call] = max(took_s, self.longest_s.get(call, 0.0))
            if took_s >= SLOW_S:
                row = {"call": call, "path": path, "at_s": began_s, "took_s": took_s}
                sys.stdout.write(json.dumps(row) + "\n")  # at once: others write, too


def main() -> None:
    mount, truth, threads, between_s, *folders = sys.argv[1:]
    reader = Reader(mount, truth, folders, between_s=float(between_s))
    workers = [threading.Thread(target=reader.run) for _ in range(int(threads))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    end = {
        "calls": reader.calls,
        "errors": reader.errors,
        "longest_s": reader.longest_s,
        "bytes": reader.bytes_read,
    }
    print(json.dumps(end))


if __name__ == "__main__":
    main()
