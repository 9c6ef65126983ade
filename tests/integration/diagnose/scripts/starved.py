"""Give the slow batch always to the same one of four workers, of which the others may not go far ahead."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Uneven(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 4 == 0:
            end = time.thread_time() + 0.05
            while time.thread_time() < end:
                pass
        return torch.zeros(8)


for _ in DataLoader(Uneven(), batch_size=1, num_workers=4, prefetch_factor=1):
    time.sleep(0.001)
