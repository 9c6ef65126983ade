"""One worker transforms, while a core is free."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return augment(index)


def augment(index: int) -> torch.Tensor:
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
    return torch.zeros(100)


def step() -> None:
    time.sleep(0.01)


for _ in DataLoader(Augmented(), batch_size=8, num_workers=1):
    step()
