"""A worker for every core, and none of them ever rests: the samples are expensive to decode."""

import os
import time
import zlib

import torch
from torch.utils.data import DataLoader, Dataset

PACKED = zlib.compress(bytes(range(256)) * 40_000)


class Packed(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(PACKED)[:1024]), dtype=torch.uint8)


def step() -> None:
    time.sleep(0.002)


for _ in DataLoader(Packed(), batch_size=8, num_workers=len(os.sched_getaffinity(0))):
    step()
