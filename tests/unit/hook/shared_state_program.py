"""Train with samplers whose objects share state with their module, their class or a closure, and print the batches.

A test runs it with and without the hook. A copy of such a sampler draws from the state of the program. The sampler then
gives other batches than it would have.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import json
import logging
import math
import os
import random
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler

COUNT = 24
EPOCHS = 3
RNG = random.Random(0)
GENERATOR = torch.Generator().manual_seed(0)
STATE = np.random.RandomState(0)
BIT_GENERATOR = np.random.default_rng(0)
TICKETS = itertools.count()
LEFT = list(range(1000))
HELD = types.SimpleNamespace(rng=random.Random(4))
MODULE = types.ModuleType("shared_state_of_a_module")
MODULE.rng = random.Random(3)  # type: ignore[attr-defined]
epochs_begun = 0


log = logging.getLogger(__name__)


class Mode(enum.Enum):
    SHUFFLED = 1
    REVERSED = 2


class Numbers(Dataset[int]):
    def __init__(self) -> None:
        self.rng = random.Random(8)
        self.weights = [1, 2, 3] * (COUNT // 3)
        self.waiting = list(range(1000))
        self.drawn = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index

    def draw(self) -> int:
        return self.rng.randrange(COUNT)

    def draw_from_module(self) -> int:
        return RNG.randrange(COUNT)

    def next_number(self) -> int:
        self.drawn += 1
        return self.drawn % COUNT


class Own(Sampler[Any]):
    """Draws from what only its object has."""

    def __init__(self) -> None:
        self.rng = random.Random(1)
        self.numpy = np.random.default_rng(1)
        self.generator = torch.Generator().manual_seed(1)
        self.data_source = Numbers()

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[Any]:
        for _ in range(8):
            yield self.draw()

    def draw(self) -> int:
        return self.rng.randrange(COUNT)


class OwnOfAllKinds(Own):
    def draw(self) -> int:
        order = torch.randperm(COUNT, generator=self.generator).tolist()
        return int(order[self.numpy.integers(COUNT)])


def even(number: int) -> int:
    return number - number % 2


class WithHarmlessFunctions(Own):
    """Uses functions, classes, and constants of its module, and the lists of its data set."""

    shift = 3

    def draw(self) -> int:
        taken = [weight for weight in self.data_source.weights if weight > 0]
        self.rng.shuffle(taken)
        return even(self.rng.randrange(COUNT)) * taken[0] % COUNT // self.shift


class OwnBatches(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        batches = list(super().__iter__())
        np.random.shuffle(batches)
        random.shuffle(batches)
        yield from batches


class ByClass(Own):
    """Gives the samples of each weight together, as samplers of balanced classes do."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.mode = Mode.SHUFFLED
        self.log = log

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.epoch + 7)
        by_weight = collections.defaultdict(list)
        for index, weight in enumerate(self.data_source.weights):
            by_weight[weight].append(index)
        log.debug("an epoch begins rank=%s", os.environ.get("RANK"))
        for weight in sorted(by_weight, reverse=self.mode is Mode.REVERSED):
            numbers = by_weight[weight]
            yield from (
                numbers[place] for place in torch.randperm(len(numbers), generator=generator).tolist()
            )
        self.epoch += 1


class OfTorch(DistributedSampler[int]):
    def __init__(self) -> None:
        super().__init__(Numbers(), num_replicas=2, rank=1)

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        np.random.default_rng(self.seed + self.epoch).shuffle(indices)
        return iter(indices)


class Buckets(Sampler[list[int]]):
    """Gives samples of similar length together."""

    def __init__(self) -> None:
        self.lengths = np.arange(COUNT) % 7
        self.rng = np.random.RandomState(3)

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / 4)

    def __iter__(self) -> Iterator[list[int]]:
        order = self.rng.permutation(len(self.lengths))
        batches = [order[start : start + 4].tolist() for start in range(0, len(order), 4)]
        batches.sort(key=lambda batch: max(self.lengths[index] for index in batch))
        self.rng.shuffle(batches)
        waiting = collections.deque(batches)
        while waiting:
            yield waiting.popleft()


@dataclasses.dataclass
class OfFields:
    count: int = COUNT
    kept: list[int] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.count).tolist())


class OfModule(Own):
    def draw(self) -> int:
        return RNG.randrange(COUNT)


class OfTorchGenerator(Own):
    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(COUNT, generator=GENERATOR).tolist()


class OfNumpyState(Own):
    def __iter__(self) -> Iterator[int]:
        yield from STATE.permutation(COUNT).tolist()


class OfNumpyGenerator(Own):
    def __iter__(self) -> Iterator[int]:
        yield from map(int, BIT_GENERATOR.permutation(COUNT))


class OfClass(Own):
    shared = random.Random(2)

    def draw(self) -> int:
        return self.shared.randrange(COUNT)


class OfBaseClass(OfClass):
    pass


class CountsInClass(Own):
    begun = 0

    def __iter__(self) -> Iterator[int]:
        type(self).begun += 1
        yield from range(self.begun)


class CountsInClassByAnotherName(Own):
    def __iter__(self) -> Iterator[int]:
        kind = type(self)
        if not hasattr(kind, "begun"):
            kind.begun = 0  # type: ignore[attr-defined]
        kind.begun += 1  # type: ignore[attr-defined]
        yield from range(kind.begun)  # type: ignore[attr-defined]


class CountsInModule(Own):
    def __iter__(self) -> Iterator[int]:
        global epochs_begun
        epochs_begun += 1
        yield from range(epochs_begun)


class TakesTickets(Own):
    def draw(self) -> int:
        return next(TICKETS) % COUNT


class TakesFromList(Own):
    def draw(self) -> int:
        return LEFT.pop() % COUNT


class OfOtherModule(Own):
    def draw(self) -> int:
        return int(MODULE.rng.randrange(COUNT))


class OfNamespace(Own):
    def draw(self) -> int:
        return int(HELD.rng.randrange(COUNT))


def drawn_of_module() -> int:
    return RNG.randrange(COUNT)


class ByFunction(Own):
    def draw(self) -> int:
        return (lambda: drawn_of_module())()


def counted() -> int:
    counted.calls += 1  # type: ignore[attr-defined]
    return int(counted.calls % COUNT)  # type: ignore[attr-defined]


counted.calls = 0  # type: ignore[attr-defined]


class ByCountedFunction(Own):
    def draw(self) -> int:
        return counted()


@functools.cache
def kept_generator() -> random.Random:
    return random.Random(5)


class ByKeptResult(Own):
    def draw(self) -> int:
        return kept_generator().randrange(COUNT)


class ByDefault(Own):
    def draw(self, rng: random.Random = random.Random(6)) -> int:  # noqa: B008
        return rng.randrange(COUNT)


class ByName(Own):
    def draw(self) -> int:
        return int(getattr(self, "draw_" + "hidden")())

    def draw_hidden(self) -> int:
        return RNG.randrange(COUNT)


class ByProperty(Own):
    @property
    def drawn(self) -> int:
        return RNG.randrange(COUNT)

    def draw(self) -> int:
        return self.drawn


class ByImport(Own):
    def draw(self) -> int:
        from tests.unit.hook.shared_state import LATER

        return LATER.randrange(COUNT)


class HoldsBuiltinMethod(Own):
    def __init__(self) -> None:
        super().__init__()
        self.take = RNG.random

    def draw(self) -> int:
        return int(self.take() * COUNT)


class HoldsMethodInPartial(Own):
    def __init__(self) -> None:
        super().__init__()
        self.take = functools.partial(RNG.getrandbits, 16)

    def draw(self) -> int:
        return self.take() % COUNT


class HoldsFunctions(Own):
    def __init__(self) -> None:
        super().__init__()
        self.take = {"draws": [lambda: RNG.randrange(COUNT)]}

    def draw(self) -> int:
        return self.take["draws"][0]()


class HoldsReference(Own):
    def __init__(self) -> None:
        super().__init__()
        self.take = weakref.ref(RNG)

    def draw(self) -> int:
        rng = self.take()
        assert rng is not None
        return rng.randrange(COUNT)


class Draws:
    def draw(self) -> int:
        return RNG.randrange(COUNT)


class CalledNumber(Draws):
    """Says that it is a number, as lazy objects do."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return int


class DrawingText(Draws, str):
    pass


class DrawingNumber(int):
    def __add__(self, other: int) -> int:
        return RNG.randrange(COUNT)


class DrawingPair(tuple[int, int]):
    def draw(self) -> int:
        return RNG.randrange(COUNT)


class DrawingMode(Draws, enum.Enum):
    ONE = 1


@functools.singledispatch
def drawn_for(number: object) -> int:
    return 0


@drawn_for.register
def _(number: int) -> int:
    return RNG.randrange(COUNT)


class ByDispatch(Own):
    def draw(self) -> int:
        return drawn_for(5)


class Adding(Own):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def draw(self) -> int:
        return self.number + 1


PAIR = DrawingPair((1, 2))


class OfPair(Own):
    def draw(self) -> int:
        return PAIR.draw()


class Size(NamedTuple):
    width: int
    height: int = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


SIZE = Size(3)


class OfConstants(Own):
    """Uses named tuples and members of enumerations, of its own and of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.size = Size(5)
        self.level = Level.HIGH

    def draw(self) -> int:
        return self.rng.randrange(
            SIZE.width * self.size.height * self.size._replace(width=1).width + Level.LOW
        )


class Holding(Own):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def draw(self) -> int:
        return int(self.held.draw())


DRAWS = Draws()


class SharedDraws:
    """Stays itself where something that has it is copied."""

    def __init__(self) -> None:
        self.rng = random.Random(7)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedDraws:
        return self


class HoldsWhatIsNotCopied(Own):
    def __init__(self) -> None:
        super().__init__()
        self.take = SharedDraws()

    def draw(self) -> int:
        return self.take.rng.randrange(COUNT)


class OfDataSet(Own):
    def draw(self) -> int:
        return self.data_source.rng.randrange(COUNT)


class ByMethodOfDataSet(Own):
    def draw(self) -> int:
        return self.data_source.draw()


class ByModuleOfDataSet(Own):
    def draw(self) -> int:
        return self.data_source.draw_from_module()


class CountsInDataSet(Own):
    def draw(self) -> int:
        return self.data_source.next_number()


class TakesFromDataSet(Own):
    def draw(self) -> int:
        return self.data_source.waiting.pop() % COUNT


class Iterated(Own):
    """Gives an iterator that can be copied, over functions that draw from the module."""

    def __iter__(self) -> Iterator[Any]:
        return map(OfModule.draw, itertools.repeat(self, 8))  # type: ignore[arg-type]


class Endless(Own):
    source = itertools.count()

    def __iter__(self) -> Iterator[Any]:
        return map(COUNT.__rmod__, itertools.islice(self.source, 8))


_KNOWN_PACKAGE: dict[str, Any] = {"__name__": "torch.utils.data.known", "Sampler": Sampler}
exec(  # classes of a package that the hook knows
    """
class Calling(Sampler):
    def __iter__(self):
        return iter([self.drawn_by_subclass() for _ in range(8)])
    def __len__(self):
        return 8
    def prepared(self):
        return 0

class Wrapping(Calling):
    def __init__(self, inner):
        self.inner = inner
    def drawn_by_subclass(self):
        return self.inner.drawn_for_wrapper()
""",
    _KNOWN_PACKAGE,
)


_Calling: Any = _KNOWN_PACKAGE["Calling"]


class CalledByKnownBase(_Calling):  # type: ignore[misc]
    def drawn_by_subclass(self) -> int:
        return RNG.randrange(COUNT)


class Inner:
    def drawn_for_wrapper(self) -> int:
        return RNG.randrange(COUNT)


class DrawsWhenCopied(random.Random):
    """Is made anew by a copy, as random.Random is."""

    def __init__(self) -> None:
        super().__init__(RNG.random())


class MadeByCopy(Own):
    def __init__(self) -> None:
        super().__init__()
        self.rng = DrawsWhenCopied()


class CountedObject:
    def __new__(cls) -> CountedObject:
        next(TICKETS)
        return super().__new__(cls)


class HoldsCountedObject(Own):
    def __init__(self) -> None:
        super().__init__()
        self.counted = CountedObject()

    def draw(self) -> int:
        return super().draw()


class CountingList(list[int]):
    def append(self, number: int) -> None:
        next(TICKETS)
        super().append(number)


class HoldsCountingList(Own):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = CountingList([1, 2, 3])


def of_closure() -> Own:
    rng = random.Random(9)

    class OfClosure(Own):
        def draw(self) -> int:
            return rng.randrange(COUNT)

    return OfClosure()


def counting_in_closure() -> Own:
    begun = 0

    class CountsInClosure(Own):
        def __iter__(self) -> Iterator[int]:
            nonlocal begun
            begun += 1
            yield from range(begun)

    return CountsInClosure()


def within_batches() -> BatchSampler:
    return BatchSampler(OfModule(), 3, drop_last=False)


SHARING: dict[str, Callable[[], Any]] = {
    kind.__name__: kind
    for kind in (
        *(OfModule, OfTorchGenerator, OfNumpyState, OfNumpyGenerator, OfClass, OfBaseClass, CountsInClass),
        *(CountsInClassByAnotherName, CountsInModule, TakesTickets, TakesFromList, OfOtherModule),
        *(OfNamespace, ByFunction, ByCountedFunction, ByKeptResult, ByDefault, ByName, ByProperty, ByImport),
        *(HoldsBuiltinMethod, HoldsMethodInPartial, HoldsFunctions, HoldsReference, HoldsWhatIsNotCopied),
        *(OfDataSet, ByMethodOfDataSet, ByModuleOfDataSet, CountsInDataSet, Iterated, Endless),
        *(CalledByKnownBase, MadeByCopy, HoldsCountedObject, HoldsCountingList),
    )
}
SHARING |= {"closure": of_closure, "closure that counts": counting_in_closure, "batches": within_batches}
SHARING |= {
    "proxy": lambda: Holding(weakref.proxy(DRAWS)),
    "called a number": lambda: Holding(CalledNumber()),
}
SHARING |= {"text": lambda: Holding(DrawingText()), "number": lambda: Adding(DrawingNumber(3))}
SHARING |= {"dispatch": ByDispatch, "pair": OfPair, "member": lambda: Holding(DrawingMode.ONE)}
SHARING |= {"wrapper": lambda: _KNOWN_PACKAGE["Wrapping"](Inner())}
"""Samplers that share state with the program, so that they have no plan."""
HARMLESS: dict[str, Callable[[], Any]] = {
    "own": Own,
    "own of all kinds": OwnOfAllKinds,
    "harmless functions": WithHarmlessFunctions,
    "by class": ByClass,
    "constants": OfConstants,
    "derived from torch's": OfTorch,
    "buckets": Buckets,
    "data class": OfFields,
    "own batches": lambda: OwnBatches(Own(), 3, drop_last=False),
}
"""Samplers that a copy can run ahead of."""
COPIED: dict[str, Callable[[], Any]] = {"list of the data set": TakesFromDataSet}
"""Samplers whose copy gets lists of its own. The data set gives something else when the sampler takes from it again."""


def batches_of(sampler: Any, workers: int) -> list[Any]:
    """Return what a loader gives in all epochs."""
    option = "batch_sampler" if isinstance(sampler, (BatchSampler, Buckets)) else "sampler"
    options: dict[str, Any] = {option: sampler}
    data_set = sampler.data_source if isinstance(sampler, Own) else Numbers()
    if workers:
        options |= {"persistent_workers": True, "multiprocessing_context": "fork"}
    loader: DataLoader[Any] = DataLoader(data_set, num_workers=workers, **options)
    return [[batch.tolist() for batch in loader] for _ in range(EPOCHS)]


def main() -> None:
    results = {}
    for name, build in (SHARING | HARMLESS | COPIED).items():
        for workers in (0, 2) if name in ("OfModule", "OfClass", "closure", "own", "own batches") else (0,):
            torch.manual_seed(5), random.seed(5), np.random.seed(5)
            batches = batches_of(build(), workers)
            drawn = [torch.rand(1).item(), random.random(), np.random.rand(), RNG.random(), next(TICKETS)]
            results[f"{name}, {workers} workers"] = [batches, drawn]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
