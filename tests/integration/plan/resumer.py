"""Read half an epoch of files as a rank of a job, or go on from the states of such a job with other ranks.

Arguments: which loader; "begin" or "resume"; the directory of the files, and that of the states. It prints the files
that it opened while it loaded samples, and those that the plan hook had learned, if it is there.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset

from headrace.integrations.torch_data import Loader
from tests.integration.plan.trainer import Files

BATCH, BATCHES, EPOCH = 4, 5, 3
Files.__module__, Files.__name__ = "torchvision.datasets.folder", "DatasetFolder"


def torchdata_loader(data: Files, rank: int, world: int, state: dict[str, Any] | None) -> Any:
    """A loader with a state, which counts what one rank has read. The program says what that means for other ranks."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(data, world, rank, seed=7)
    sampler.set_epoch(EPOCH)
    loader: Any = StatefulDataLoader(data, batch_size=BATCH, sampler=sampler)
    if state is not None:
        loader.load_state_dict(state["loader"])
    return loader


def torch_loader(data: Files, rank: int, world: int, state: dict[str, Any] | None) -> Any:
    """A loader without a state. The program distributes what no rank has read to the ranks that there are now."""
    if state is None:
        rest: Any = data
    else:
        read = {
            index
            for other in range(state["world"])
            for index in list(sampler_of(data, other, state["world"]))[: BATCH * BATCHES]
        }
        rest = Subset(data, sorted(set(range(len(data))) - read))
    return DataLoader(rest, batch_size=BATCH, sampler=sampler_of(rest, rank, world))


def sampler_of(data: Any, rank: int, world: int) -> Any:
    sampler: Any = DistributedSampler(data, world, rank, seed=7)
    sampler.set_epoch(EPOCH)
    return sampler


def headrace_loader(data: Files, rank: int, world: int, state: dict[str, Any] | None) -> Any:
    """Our own loader. With other ranks, it begins an epoch anew."""
    loader = Loader(data, BATCH, rank=rank, world=world, seed=7)
    if state is not None:
        batches = state["loader"]["batches"] if state["world"] == world else 0
        loader.load_state_dict({**state["loader"], "batches": batches})
    return loader


LOADERS: dict[str, Callable[[Files, int, int, dict[str, Any] | None], Any]] = {
    "torchdata": torchdata_loader,
    "torch": torch_loader,
    "headrace": headrace_loader,
}


def main() -> None:
    kind, phase, folder, states = sys.argv[1:]
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    opened: list[str] = []
    learned: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(f"{folder}/"):
            opened.append(str(arguments[0]))

    reporter = sys.modules.get("headrace_plan_hook.reporter")
    if reporter is not None:
        begin = reporter.ReportedStream.begin

        def noting(stream: Any, order: array[int]) -> None:
            begin(stream, order)
            learned.extend(stream.files[index] for index in order)

        reporter.ReportedStream.begin = noting
    data = Files(folder)
    saved = os.path.join(states, "state")
    state = torch.load(saved, weights_only=False) if phase == "resume" else None
    sys.addaudithook(audit)
    loader = LOADERS[kind](data, rank, world, state)
    for number, _ in enumerate(loader):
        if phase == "begin" and number + 1 == BATCHES:
            break
    if phase == "begin" and rank == 0:
        stateful = hasattr(loader, "state_dict")
        torch.save({"world": world, "loader": loader.state_dict() if stateful else None}, saved)
    print(json.dumps({"opened": opened, "learned": learned}))


if __name__ == "__main__":
    main()
