"""Train as the ranks that torchrun, or `accelerate launch`, starts.

Arguments: "torch" or "accelerate"; the directory of the files, and that of the results; and what happens in the middle
of one more epoch: "fail", for the last rank to raise an error, or "wait", for all to wait there until they are ended,
or until there is a file `go`. Each rank writes which samples it read, the digests of their bytes and the losses.

The ranks average their gradients, and step, by themselves: torch's own wrapper and optimizers import its compiler,
which takes as much processor time as all the rest.
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
"""STOP_AT: the batch at which the epoch after those stops."""


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


def with_torch(data: Files) -> tuple[Any, Any, int]:
    """Return the loader, the accelerator, and the number of the rank."""
    torch.distributed.init_process_group("gloo")
    loader: Any = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), num_workers=2)
    return loader, None, torch.distributed.get_rank()


def with_accelerate(data: Files) -> tuple[Any, Any, int]:
    """Return what `with_torch` returns."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader: Any = accelerator.prepare(DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2))
    return loader, accelerator, accelerator.process_index


def step(model: torch.nn.Module) -> None:
    """Descend along the mean of all ranks' gradients."""
    with torch.no_grad():
        for parameter in model.parameters():
            gradient = parameter.grad
            assert gradient is not None
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(gradient)
                gradient /= torch.distributed.get_world_size()
            parameter.sub_(gradient, alpha=0.1)
            parameter.grad = None


def main() -> None:
    package, folder, results, *stop = sys.argv[1:]
    torch.manual_seed(3)
    loader, accelerator, rank = (with_torch if package == "torch" else with_accelerate)(Files(folder))
    model = torch.nn.Linear(16, 1)
    steps: list[Any] = []
    for epoch in range(EPOCHS + bool(stop)):
        if epoch == EPOCHS:
            write(results, rank, steps)
        (loader if accelerator else loader.sampler).set_epoch(epoch)
        for number, (indices, values, digests) in enumerate(loader):
            loss = (model(values) - indices[:, None] / 100).square().mean()
            accelerator.backward(loss) if accelerator else loss.backward()
            step(model)
            steps.append([indices.tolist(), list(digests), loss.item(), torch.rand(1).item()])
            if number == STOP_AT and epoch == EPOCHS:
                stop_here(stop[0], results, rank)
    write(results, rank, steps)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def write(results: str, rank: int, steps: list[Any]) -> None:
    with open(os.path.join(results, f"{rank}.json"), "w") as out:
        json.dump(steps, out)


def stop_here(how: str, results: str, rank: int) -> None:
    if how == "fail":
        assert rank + 1 != int(os.environ.get("WORLD_SIZE", "1")), "the last rank fails"
        return
    open(os.path.join(results, f"{rank}.waiting"), "w").close()
    while not os.path.exists(os.path.join(results, "go")):
        time.sleep(0.1)


if __name__ == "__main__":
    main()
