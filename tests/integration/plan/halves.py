"""Train on one half of a directory of files and validate on the other one, with new loaders for each epoch.

Arguments: the directory, and a file to wait for after the first batch of the second epoch of each half.
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
    for epoch in range(2):
        for number, half in enumerate(halves):
            batches = iter(DataLoader(half, 8, shuffle=True, num_workers=1))
            next(batches)
            while epoch == 1 and not os.path.exists(f"{go}.{number}"):
                time.sleep(0.02)
            list(batches)


if __name__ == "__main__":
    main()
