"""Train with the loaders of other packages, as programs of users do, in an epoch and on from the middle of one.

Arguments: the package, and a directory. It prints what each loader gave, what the plan hook had learned at its first
batch, if it is there, and a digest of the states of loaders and random generators.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

SAMPLES = 103
Runs = dict[str, dict[str, list[int]]]


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class HalfShuffled(Sampler[int]):
    """Draws from a global generator when its iteration begins."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(SAMPLES).tolist()[: SAMPLES // 2]

    def __len__(self) -> int:
        return SAMPLES // 2


def as_batch(index: int) -> torch.Tensor:
    return torch.tensor([index])


class Record:
    """Keeps what the loaders of a program gave, what the hook reports at the beginning of an epoch, and the states of
    loaders where the program saved them."""

    def __init__(self) -> None:
        self.runs: Runs = {}
        self.states: list[str] = []
        self._orders: list[tuple[list[int], list[int]]] = []
        self._run: dict[str, list[int]] = {}
        reporter = sys.modules.get("headrace_plan_hook.reporter")
        if reporter is not None:
            self._watch(reporter)

    def _watch(self, reporter: Any) -> None:
        """Note each order that the hook is about to report, and what it expects of the epoch after that."""
        begin, orders = reporter.ReportedStream.begin, self._orders
        next_epoch = sys.modules["headrace_plan_hook.samplers"].next_epoch

        def noting(stream: Any, order: array[int]) -> None:
            begin(stream, order)
            orders.append((order.tolist(), (next_epoch(stream.index_sampler()) or array("I")).tolist()))

        reporter.ReportedStream.begin = noting

    def begin(self, name: str) -> None:
        """Begin an epoch, after its first batch was taken."""
        order, later = self._orders[-1] if self._orders else ([], [])
        self._orders.clear()
        self._run = self.runs[name] = {"given": [], "learned": order, "later": later}

    def add(self, batch: torch.Tensor) -> None:
        """Add a batch. The program draws random numbers in between."""
        self._run["given"] += batch.tolist()
        torch.rand(1), random.random(), np.random.rand()

    def read(self, name: str, loader: Any, *, batches: int | None = None) -> None:
        """Take some batches of an epoch, all by default."""
        for number, batch in enumerate(loader):
            if number == 0:
                self.begin(name)
            self.add(batch)
            if number + 1 == batches:
                break


def with_torchdata(record: Record, rank: int, world: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def distributed() -> dict[str, Any]:
        return {"sampler": StatefulDistributedSampler(Numbers(), world, rank), "batch_size": 4}

    options: dict[str, Callable[[], dict[str, Any]]] = {
        "shuffle": lambda: {"shuffle": True, "batch_size": 4},
        "in order": lambda: {"batch_size": 4, "drop_last": True},
        "distributed": distributed,
        "torch's sampler": lambda: {"sampler": RandomSampler(Numbers()), "batch_size": 4},
        "torch's batches": lambda: {
            "batch_sampler": BatchSampler(RandomSampler(Numbers()), 4, drop_last=False)
        },
        "without batches": lambda: {
            "sampler": RandomSampler(Numbers()),
            "batch_size": None,
            "collate_fn": as_batch,
        },
        "own sampler": lambda: {"sampler": HalfShuffled(), "batch_size": 4},
    }
    for name, build in options.items():
        for workers in (0, 2) if name in ("shuffle", "torch's sampler") else (0,):
            loader: Any = StatefulDataLoader(Numbers(), num_workers=workers, **build())
            record.read(f"{name} {workers}: epoch", loader)
            record.read(f"{name} {workers}: begun", loader, batches=5)
            state = loader.state_dict()
            loader = StatefulDataLoader(Numbers(), num_workers=workers, **build())
            loader.load_state_dict(state)
            record.read(f"{name} {workers}: resumed", loader)
            record.read(f"{name} {workers}: after", loader)
            record.states.append(repr(state))


def with_accelerate(record: Record) -> None:
    # as if it was not installed: several ranks would import it, which takes a second of each
    cast(Any, sys.modules)["datasets"] = None
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    options_by_name: dict[str, dict[str, Any]] = {
        "": {},
        "seedable": {"use_seedable_sampler": True, "data_seed": 7},
        "split": {"split_batches": True},
        "stateful": {"use_stateful_dataloader": True, "use_seedable_sampler": True},
    }
    for name, options in options_by_name.items():
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
        for shuffle in (True, False):
            loader: Any = accelerator.prepare(DataLoader(Numbers(), batch_size=4, shuffle=shuffle))
            for epoch in range(2):
                loader.set_epoch(epoch)
                record.read(f"{name} {shuffle}: epoch {epoch}", loader)
            if name != "stateful":
                record.read(f"{name} {shuffle}: skipped", accelerator.skip_first_batches(loader, 3))
                continue
            record.read(f"{name} {shuffle}: begun", loader, batches=3)
            state = loader.state_dict()
            record.states.append(repr(state))
            loader = accelerator.prepare(DataLoader(Numbers(), batch_size=4, shuffle=shuffle))
            loader.load_state_dict(state)
            record.read(f"{name} {shuffle}: resumed", loader)
        accelerator.free_memory()


def main() -> None:
    package, folder = sys.argv[1:]
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    record = Record()
    if package == "torchdata":
        with_torchdata(record, rank, world)
    elif package == "accelerate":
        with_accelerate(record)
    else:
        importlib.import_module(f"tests.integration.plan.provided_{package}").train(record, folder, world)
    numpy_state: Any = np.random.get_state()
    states = [record.states, torch.get_rng_state().tolist(), random.getstate(), numpy_state[1].tolist()]
    print(json.dumps({"runs": record.runs, "states": hashlib.md5(repr(states).encode()).hexdigest()}))


if __name__ == "__main__":
    main()
