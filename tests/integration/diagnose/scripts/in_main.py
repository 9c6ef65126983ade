"""A loader without workers: each batch is made after the step before."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return augment(index)


def augment(index: int) -> torch.Tensor:
    total = 0
    for number in range(100_000):
        total += number * index
    return torch.tensor(total % 1000)


for _ in DataLoader(Augmented(), batch_size=8, num_workers=0):
    time.sleep(0.02)
