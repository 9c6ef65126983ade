"""Epochs of a few batches, each with new workers."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Few(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(8)


while True:
    for _ in DataLoader(Few(), batch_size=4, num_workers=4):
        time.sleep(0.001)
