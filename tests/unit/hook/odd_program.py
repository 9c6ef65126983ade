"""Do with torch's DataLoader what programs rarely do, and print what came of it.

A test runs it with and without the hook. The argument is a folder with a file that samples open.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
)

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


def growing_batches(*, drop_last: bool) -> Any:
    """Change the size of batches within an epoch."""
    batches = BatchSampler(RandomSampler(range(COUNT)), 2, drop_last)
    taken = []
    for batch in DataLoader(Numbers(), batch_sampler=batches):
        taken.append(list(batch))
        batches.batch_size += 1
    return taken


def other_indices(change: Callable[[Any], None]) -> Any:
    """Change what a sampler chooses from within an epoch."""
    sampler = SubsetRandomSampler([*range(8)])
    taken = []
    for batch in DataLoader(Numbers(), 2, sampler=sampler):
        taken.append(list(batch))
        change(sampler)
    return taken


def replace_indices(sampler: Any) -> None:
    sampler.indices = [20] * 8


def overwrite_indices(sampler: Any) -> None:
    sampler.indices[:] = [20] * 8


class Mortal(Numbers):
    def __init__(self, deaths: list[str]) -> None:
        self.deaths = deaths

    def __del__(self) -> None:
        self.deaths.append("gone")


def deaths(wrapped: Callable[[Any], Any]) -> Any:
    """Return when a data set is gone whose loader is."""
    gc.disable()
    try:
        events: list[str] = []
        flat(DataLoader(wrapped(Mortal(events)), 4))
        return [*events, "end"]
    finally:
        gc.enable()


class Slow(Sampler[int]):
    """Takes much longer than the alarm of the program."""

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            end_s = time.monotonic() + 0.05
            while time.monotonic() < end_s:
                pass
            yield index


class AlarmError(Exception):
    """Is raised by the handler of a signal."""


class Handler:
    def raise_error(self, error: type[Exception], *_: Any) -> None:
        raise error

    def __call__(self, *_: Any) -> None:
        raise AlarmError


def alarmed(handler: Any) -> Any:
    """Let an alarm end a read that takes too long."""
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.12)
    taken = []
    try:
        for batch in DataLoader(Numbers(), 2, sampler=Slow()):
            taken.append(batch)
    except (AlarmError, TimeoutError) as error:
        return type(error).__name__
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return taken


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
    "growing batches": lambda: growing_batches(drop_last=False),
    "growing batches, last dropped": lambda: growing_batches(drop_last=True),
    "indices replaced": lambda: other_indices(replace_indices),
    "indices overwritten": lambda: other_indices(overwrite_indices),
    "gone": lambda: deaths(lambda data_set: data_set),
    "gone, subset": lambda: deaths(lambda data_set: Subset(data_set, range(8))),
    "alarm": lambda: alarmed(Handler()),
    "alarm of a method": lambda: alarmed(functools.partial(Handler().raise_error, TimeoutError)),
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
