"""The data is there in time; the step takes what it takes. A sleep stands in for an accelerator's work."""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Light(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64, 64), float(index))


def step() -> None:
    time.sleep(0.15)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 30
# the worker stays a second ahead, as other processes may take its processor for a while
for number, _ in enumerate(DataLoader(Light(), batch_size=16, num_workers=1, prefetch_factor=8)):
    step()
    if number == 2 and "JOB_REPORTS" in os.environ:  # the worker is ahead
        open(os.path.join(os.environ["JOB_REPORTS"], str(os.getpid())), "wb").close()
    if number + 1 == steps:
        break
os._exit(7)  # the worker has ended; Python would take 2 s more to take apart what torch imported
