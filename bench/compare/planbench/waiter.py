"""Read files in shuffled batches with torch, and print the wait for each: `waiter.py FOLDER BATCH STEP_S SECONDS`.

The loader reads in this process, so a wait is the time that the reads of a batch take. The first epoch is not counted.
Prints a line of JSON: a list of seconds.
"""

from __future__ import annotations

import json
import sys
import time

from torch.utils.data import DataLoader
from trainer import Files, identity


def main() -> None:
    folder, batch, step_s, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    loader = DataLoader(Files(folder), batch_size=batch, shuffle=True, drop_last=True, collate_fn=identity)
    for _ in loader:
        pass
    waits: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        requested_s = time.perf_counter()
        for _ in loader:
            waits.append(time.perf_counter() - requested_s)
            time.sleep(step_s)
            requested_s = time.perf_counter()
    print(json.dumps(waits))


if __name__ == "__main__":
    main()
