"""Train on files with torch and nothing else: `trainer.py FOLDER BATCH STEP_S EPOCHS`. A step is a sleep.

Prints a line of JSON: of each epoch its seconds, steps, samples and bytes, the wait for its first batch, and the
longest of the first four.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

WORKERS = 4
FIRST_BATCHES = 4


class Files(Dataset[int]):
    """The files of a folder, as torchvision's ImageFolder has them."""

    def __init__(self, folder: str) -> None:
        names = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
        self.samples = [(name, 0) for name in sorted(names)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        with open(self.samples[index][0], "rb") as file:
            return len(file.read())


# as torchvision's data set, of which the hook knows the files; torchvision itself is not installed
Files.__module__, Files.__name__, Files.__qualname__ = (
    "torchvision.datasets.folder",
    "DatasetFolder",
    "DatasetFolder",
)


def identity(samples: list[int]) -> list[int]:
    return samples


def main() -> None:
    folder, batch, step_s, epochs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(7)
    loader = DataLoader(
        Files(folder),
        batch_size=batch,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        drop_last=True,
        collate_fn=identity,
        multiprocessing_context="fork",
    )
    print(json.dumps([run_epoch(loader, step_s) for _ in range(epochs)]))


def run_epoch(loader: DataLoader[int], step_s: float) -> dict[str, Any]:
    start_s = requested_s = time.perf_counter()
    waits, size_bytes, samples = [], 0, 0
    for sizes in loader:
        waits.append(time.perf_counter() - requested_s)
        size_bytes, samples = size_bytes + sum(sizes), samples + len(sizes)
        time.sleep(step_s)
        requested_s = time.perf_counter()
    return {
        "seconds": time.perf_counter() - start_s,
        "steps": len(waits),
        "samples": samples,
        "bytes": size_bytes,
        "wait_s": waits[0],
        "first_wait_s": max(waits[:FIRST_BATCHES]),
    }


if __name__ == "__main__":
    main()
