"""A healthy job that starts its loader first; then it imports and builds a model, which takes processors longer."""

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Light(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64, 64), float(index))


class Model(torch.nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Wait as for an accelerator: a step is known by its forward."""
        time.sleep(0.15)
        return batch


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def build() -> Model:
    work(1.0)
    return Model()


folder, steps = Path(sys.argv[1]), int(sys.argv[2])
batches = iter(DataLoader(Light(), batch_size=16, num_workers=1))
(folder / "slow_to_import.py").write_text("import __main__\n__main__.work(1.5)\n")
sys.path.insert(0, str(folder))
import slow_to_import  # type: ignore[import-not-found]  # noqa: E402, F401

model = build()
for number, batch in enumerate(batches):
    model(batch)
    if number + 1 == steps:
        break
del batches  # ends the worker
os._exit(7)  # Python would take 2 s more to take apart what torch imported
