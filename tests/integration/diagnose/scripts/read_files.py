"""Reads the files of a list, whole, with two workers; which storage they lie on decides."""

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[torch.Tensor]):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.paths[index], "rb") as file:
            return torch.tensor(len(file.read()))


def step() -> None:
    time.sleep(0.002)


for _ in DataLoader(Files(Path(sys.argv[1]).read_text().split("\n")), batch_size=2, num_workers=2):
    step()
time.sleep(60)
