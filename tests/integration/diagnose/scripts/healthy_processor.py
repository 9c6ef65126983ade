"""All cores multiply matrices."""

import contextlib
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
    # that counts within its session only: sessions compete by a priority of their own (sched(7), autogroups)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as autogroup:
        autogroup.write("-10")
# with more threads than cores, those that wait at the end of a product sleep, and a core seems idle
torch.set_num_threads(len(os.sched_getaffinity(0)))
# short products: a thread whose other one lost its core spins for some milliseconds before it sleeps
ONE, PRODUCT = torch.rand(400, 400), torch.empty(400, 400)
for batch in DataLoader(Light(), batch_size=None, num_workers=0):
    for _ in range(100):
        torch.mm(batch, batch, out=PRODUCT)  # new memory each time would be work for one core
    open(os.path.join(os.environ["JOB_REPORTS"], str(os.getpid())), "wb").close()
