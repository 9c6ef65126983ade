"""Train as the ranks that torchrun, or `accelerate launch`, starts.

Arguments: "torch" or "accelerate"; the directory of the files, and that of the results; and "fail", for the last rank
to raise an error in mid-epoch, or "wait", for all to wait there until they are ended. Each rank writes which samples it
read, the digests of their bytes and the losses.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BATCH, EPOCHS, STOP_AT = 4, 2, 5
"""STOP_AT: the batch at which the first epoch stops."""


class Files(Dataset[Any]):
    def __init__(self, folder: str) -> None:
        self.samples = [(os.path.join(folder, name), 0) for name in sorted(os.listdir(folder))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, str]:
        with open(self.samples[index][0], "rb") as file:
            data = file.read()
        return index, torch.tensor([byte / 256 for byte in data[:16]]), hashlib.md5(data).hexdigest()


Files.__module__, Files.__name__ = "torchvision.datasets.folder", "DatasetFolder"


def with_torch(data: Files) -> tuple[Any, Any, Any, int]:
    """Return the loader, the model, what steps, and the number of the rank."""
    torch.distributed.init_process_group("gloo")
    loader: Any = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), num_workers=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    return loader, model, None, torch.distributed.get_rank()


def with_accelerate(data: Files) -> tuple[Any, Any, Any, int]:
    """Return what `with_torch` returns."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader: Any = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2)
    model, loader = accelerator.prepare(torch.nn.Linear(16, 1), loader)
    return loader, model, accelerator, accelerator.process_index


def main() -> None:
    package, folder, results, *stop = sys.argv[1:]
    torch.manual_seed(3)
    loader, model, accelerator, rank = (with_torch if package == "torch" else with_accelerate)(Files(folder))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for epoch in range(EPOCHS):
        (loader if accelerator else loader.sampler).set_epoch(epoch)
        for number, (indices, values, digests) in enumerate(loader):
            loss = (model(values) - indices[:, None] / 100).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss) if accelerator else loss.backward()
            optimizer.step()
            steps.append([indices.tolist(), list(digests), loss.item(), torch.rand(1).item()])
            if number == STOP_AT and stop:
                stop_here(stop[0], results, rank)
    with open(os.path.join(results, f"{rank}.json"), "w") as out:
        json.dump(steps, out)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def stop_here(how: str, results: str, rank: int) -> None:
    if how == "fail":
        assert rank + 1 != int(os.environ.get("WORLD_SIZE", "1")), "the last rank fails"
        return
    open(os.path.join(results, f"{rank}.waiting"), "w").close()
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
