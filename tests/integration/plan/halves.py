"""Read first one half of a directory of files, and then the other one, with a new loader for each epoch.

Arguments: the directory, and the path of two files, without their numbers. Each half is read until its file exists.
After the first batch of an epoch the program waits for the file, in each epoch twice as long.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, random_split


class Files(Dataset[Any]):
    def __init__(self, folder: str) -> None:
        self.paths = sorted(os.path.join(top, name) for top, _, names in os.walk(folder) for name in names)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb") as file:
            return len(file.read())


def main() -> None:
    folder, go = sys.argv[1:]
    halves = random_split(Files(folder), [0.5, 0.5], generator=torch.Generator().manual_seed(1))
    for number, half in enumerate(halves):
        wait_s = 1.0
        while not os.path.exists(f"{go}.{number}"):
            batches = iter(DataLoader(half, 8, shuffle=True, num_workers=1))
            next(batches)
            end_s = time.monotonic() + wait_s
            while not os.path.exists(f"{go}.{number}") and time.monotonic() < end_s:
                time.sleep(0.02)
            list(batches)
            wait_s *= 2


if __name__ == "__main__":
    main()
