"""Train on files with torch: `trainer.py FOLDER BATCH STEP_S EPOCHS [KIND]`. A step is a sleep.

KIND: "files", with torch alone; "tokens", our TokenWindows; "arrow", a data set that Hugging Face saved to disk.

Prints a line of JSON: of each epoch its seconds, steps, samples and bytes, the wait for its first batch, and the
longest of the first four.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

WORKERS = 4
WINDOW = 8192
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


def bytes_of_windows(windows: list[torch.Tensor]) -> list[int]:
    return [window.nbytes for window in windows]


def bytes_of_rows(rows: list[dict[str, str]]) -> list[int]:
    return [len(row["text"]) for row in rows]


def data_set_of(folder: str, kind: str) -> tuple[Any, Callable[[Any], list[int]]]:
    """Return a data set, and what makes the sizes of a batch's samples of it."""
    if kind == "tokens":
        from headrace.integrations.torch_data import TokenWindows

        return TokenWindows(folder, window=WINDOW, suffixes=(".bin",)), bytes_of_windows
    if kind == "arrow":
        import datasets  # type: ignore[import-untyped]

        return datasets.load_from_disk(folder), bytes_of_rows
    return Files(folder), identity


def main() -> None:
    folder, batch, step_s, epochs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(7)
    data_set, sizes_of = data_set_of(folder, sys.argv[5] if len(sys.argv) > 5 else "files")
    loader = DataLoader(
        data_set,
        batch_size=batch,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        drop_last=True,
        collate_fn=sizes_of,
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
