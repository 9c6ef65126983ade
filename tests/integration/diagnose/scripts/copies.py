"""Batches are large, and are converted on their way to the device, which is the processor here."""

import time

import torch
from torch.utils.data import DataLoader, Dataset

PREPARED = torch.zeros(4096, 4096, dtype=torch.uint8)
PREPARED.share_memory_()  # type: ignore[no-untyped-call]


class Ready(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return PREPARED


device = torch.device("cpu")
for batch in DataLoader(Ready(), batch_size=None, num_workers=1):
    on_device = batch.to(device, dtype=torch.float64)
    time.sleep(0.03)
