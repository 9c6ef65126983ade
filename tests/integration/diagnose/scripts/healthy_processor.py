"""All cores multiply matrices."""

import os

import torch
from torch.utils.data import DataLoader, Dataset


class Light(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return ONE


if os.geteuid() == 0:  # tests beside this one would take the processor from a healthy job
    os.setpriority(os.PRIO_PROCESS, 0, -10)
# with more threads than cores, those that wait at the end of a product sleep, and a core seems idle
torch.set_num_threads(len(os.sched_getaffinity(0)))
ONE, PRODUCT = torch.rand(1500, 1500), torch.empty(1500, 1500)
for batch in DataLoader(Light(), batch_size=None, num_workers=0):
    for _ in range(8):
        torch.mm(batch, batch, out=PRODUCT)  # new memory each time would be work for one core
    open(os.path.join(os.environ["JOB_REPORTS"], str(os.getpid())), "wb").close()
