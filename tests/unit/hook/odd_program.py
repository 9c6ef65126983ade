"""Do with torch's DataLoader what programs rarely do, and print what came of it.

A test runs it with and without the hook. The argument is a folder with a file that samples open.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SubsetRandomSampler

COUNT = 24


class Numbers(Dataset[Any]):
    """Opens a file for each sample, as workers of real programs do."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> str:
        with open(os.path.join(sys.argv[1], "file")):
            return f"{index} {type(index).__name__}"


class Magic(Numbers):
    """Answers each name, or raises what nobody expects."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Slots:
    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))

    def __len__(self) -> int:
        return COUNT


class NoLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 2])

    def __len__(self) -> int:
        raise ValueError("no length")


class FailsOnce(Sampler[Any]):
    """Its iterator goes on after an error."""

    def __iter__(self) -> Iterator[Any]:
        self.count = 0
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count == 4:
            raise ZeroDivisionError
        if self.count > 8:
            raise StopIteration
        return self.count


def flat(loader: DataLoader[Any]) -> list[Any]:
    return [batch if isinstance(batch, str) else list(batch) for batch in loader]


def broken_off(generator: torch.Generator | None) -> Any:
    """Leave epochs in their middle: what a generator of the program gives next depends on that."""
    loader = DataLoader(Numbers(), 4, shuffle=True, generator=generator)
    firsts = [list(next(iter(loader))) for _ in range(3)]
    return firsts, flat(loader), torch.rand(1).item()


def after_an_error() -> Any:
    iterator = iter(DataLoader(Numbers(), batch_size=None, sampler=FailsOnce()))
    taken: list[Any] = []
    for _ in range(9):
        try:
            taken.append(next(iterator))
        except (ZeroDivisionError, StopIteration) as error:
            taken.append(type(error).__name__)
    return taken


def interleaved() -> Any:
    loader = DataLoader(Numbers(), 5, shuffle=True)
    first, second = iter(loader), iter(loader)
    return [list(next(iterator)) for _ in range(4) for iterator in (first, second)]


def in_threads() -> Any:
    taken: dict[int, Any] = {}

    def load(number: int) -> None:
        sampler = RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(number))
        taken[number] = flat(DataLoader(Numbers(), 3, sampler=sampler))

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(taken.items())


def with_workers(context: str, count: int) -> Any:
    options: dict[str, Any] = {
        "num_workers": count,
        "persistent_workers": True,
        "multiprocessing_context": context,
    }
    loader = DataLoader(Numbers(), 4, shuffle=True, **options)
    return [flat(loader), flat(loader)]


def without_stderr() -> Any:
    kept, sys.stderr = sys.stderr, None
    try:
        return flat(DataLoader(Numbers(), batch_sampler=[[0, 1], [2]]))
    finally:
        sys.stderr = kept


CASES: dict[str, Callable[[], Any]] = {
    "a list of batches": lambda: flat(DataLoader(Numbers(), batch_sampler=[[0, 1], [2, 3]])),
    "without stderr": without_stderr,
    "slots": lambda: flat(DataLoader(Numbers(), batch_size=None, sampler=Slots())),
    "numbers of numpy": lambda: flat(DataLoader(Numbers(), 4, sampler=SubsetRandomSampler(np.arange(8)))),  # type: ignore[arg-type]
    "numbers below zero": lambda: flat(DataLoader(Numbers(), 2, sampler=SubsetRandomSampler([-1, 3, -2]))),
    "no length": lambda: flat(DataLoader(Numbers(), batch_size=None, sampler=NoLength())),
    "magic": lambda: flat(DataLoader(Magic(), 4)),
    "broken off": lambda: broken_off(None),
    "broken off, own generator": lambda: broken_off(torch.Generator().manual_seed(3)),
    "after an error": after_an_error,
    "interleaved": interleaved,
    "threads": in_threads,
    "forked": lambda: with_workers("fork", 2),
    "forkserver": lambda: with_workers("forkserver", 1),  # which imports torch
}


def main() -> None:
    results = {}
    for name, case in CASES.items():
        torch.manual_seed(5)
        try:
            result = case()
        except Exception as error:  # noqa: BLE001 - it is compared
            result = repr(error)
        results[name] = [result, torch.rand(1).item()]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
