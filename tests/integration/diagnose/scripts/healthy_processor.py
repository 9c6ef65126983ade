"""All cores multiply matrices."""

import os

import torch
from torch.utils.data import DataLoader, Dataset


class Light(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return ONE


if os.geteuid() == 0:
    os.setpriority(
        os.PRIO_PROCESS, 0, -10
    )  # tests beside this one would take the processor from a healthy job
torch.set_num_threads(2 * max(2, len(os.sched_getaffinity(0))))  # so that no core is idle at the end of each
ONE = torch.rand(1500, 1500)
for batch in DataLoader(Light(), batch_size=None, num_workers=0):
    for _ in range(8):
        torch.mm(batch, batch)
