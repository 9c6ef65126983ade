"""Train on a directory of files, as a program of a user does that has never heard of Headrace.

Arguments: the directory, the samplers with commas between, the number of workers, "known" for a data set that names its
files, and a file to wait for after the first batch of the second epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler


class Files(Dataset[Any]):
    def __init__(self, folder: str) -> None:
        names = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
        self.samples = [(name, 0) for name in sorted(names)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, str]:
        with open(self.samples[index][0], "rb") as file:
            return index, hashlib.md5(file.read()).hexdigest()


class Blocks(Sampler[list[int]]):
    """Draws from two global generators as it goes."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(20):
            yield [random.randrange(240), int(np.random.randint(240))]

    def __len__(self) -> int:
        return 20


def loader_of(data: Files, sampler: str, workers: int) -> DataLoader[Any]:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "persistent_workers": workers > 0}
    if sampler == "shuffle":
        return DataLoader(data, shuffle=True, **options)
    if sampler == "replacement":
        return DataLoader(data, sampler=RandomSampler(data, replacement=True, num_samples=100), **options)
    if sampler == "distributed":
        return DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=1), **options)
    del options["batch_size"]
    return DataLoader(data, batch_sampler=Blocks(), **options)


def main() -> None:
    folder, samplers, workers, *rest = sys.argv[1:]
    if rest[:1] == ["known"]:
        Files.__module__, Files.__name__ = "torchvision.datasets.folder", "DatasetFolder"
    runs = {
        sampler: train(Files(folder), sampler, int(workers), *rest[1:]) for sampler in samplers.split(",")
    }
    print(json.dumps(runs))


def train(data: Files, sampler: str, workers: int, go: str = "") -> dict[str, Any]:
    """Return what two epochs gave, and the random states at their end."""
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    loader = loader_of(data, sampler, workers)
    batches = []
    for epoch in range(2):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for number, (indices, digests) in enumerate(loader):
            batches.append([indices.tolist(), list(digests), torch.rand(1).item(), random.random()])
            if epoch == 1 and number == 0 and go:
                open(go + ".waiting", "w").close()
                while not os.path.exists(go):
                    time.sleep(0.02)
    states = [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]
    return {"batches": batches, "states": hashlib.md5(repr(states).encode()).hexdigest()}


if __name__ == "__main__":
    main()
