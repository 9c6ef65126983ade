"""Samples are lists of numbers, which are packed one by one for their way to the trainer."""

import time

from torch.utils.data import DataLoader, Dataset

NUMBERS = [float(number) for number in range(200_000)]


class Lists(Dataset[list[float]]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> list[float]:
        return NUMBERS


def as_it_is(samples: list[list[float]]) -> list[list[float]]:
    return samples


for _ in DataLoader(Lists(), batch_size=8, num_workers=1, collate_fn=as_it_is):
    time.sleep(0.001)
