"""Learning an order changes nothing that the program sees: batches, and the states of all random generators."""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from headrace.hook import samplers
from headrace.hook.samplers import LearnedOrder, NotPlannable, learn, next_epoch

SAMPLES = range(103)


class DrawsAsItGoes(Sampler[int]):
    """Draws from all three global generators between its indices."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(50):
            torch.rand(1)
            yield random.randrange(103) + int(np.random.randint(2)) * 0

    def __len__(self) -> int:
        return 50


def shared_generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(SAMPLES),
    "random": lambda: RandomSampler(SAMPLES),
    "random, own generator": lambda: RandomSampler(SAMPLES, generator=shared_generator()),
    "replacement": lambda: RandomSampler(SAMPLES, replacement=True, num_samples=200),
    "replacement, own generator": lambda: RandomSampler(
        SAMPLES, replacement=True, num_samples=200, generator=shared_generator()
    ),
    "weighted": lambda: WeightedRandomSampler([1.0] * 50 + [2.0] * 53, 90),
    "subset": lambda: SubsetRandomSampler(range(3, 60)),
    "distributed": lambda: DistributedSampler(SAMPLES, num_replicas=3, rank=1, seed=2),  # type: ignore[arg-type]
    "drawing as it goes": DrawsAsItGoes,
}


def seed_all() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def random_states() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]


def two_epochs(index_sampler: Any, *, planned: bool) -> tuple[list[list[Any]], list[array[int]], object]:
    """Return the batches of two epochs, the orders that were learned, and the states of the generators then. The
    program draws random numbers of its own between batches."""
    seed_all()
    epochs, orders = [], []
    for _ in range(2):
        iterator = iter(index_sampler)
        if planned:
            order = learn(index_sampler, iterator, world=1)
            orders.append(order.indices)
            iterator = iterator if order.batches is None else order.batches
        batches = []
        for batch in iterator:
            batches.append(batch)
            torch.rand(1), random.random(), np.random.rand()
        epochs.append(batches)
    return epochs, orders, random_states()


@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_is_the_same_with_and_without_a_plan(name: str, drop_last: bool, is_batched: bool) -> None:
    def build() -> Any:
        seed_all()
        sampler = SAMPLERS[name]()
        return BatchSampler(sampler, 8, drop_last) if is_batched else sampler

    plain, _, states = two_epochs(build(), planned=False)
    planned, orders, states_planned = two_epochs(build(), planned=True)
    assert planned == plain
    assert states_planned == states
    if name == "drawing as it goes":
        return  # the copy can't know what the program draws in between
    for batches, order in zip(plain, orders, strict=True):
        assert [index for batch in batches for index in (batch if is_batched else [batch])] == order.tolist()


def test_the_next_epoch_of_a_distributed_sampler_is_known() -> None:
    sampler = DistributedSampler(SAMPLES, num_replicas=3, rank=2, seed=4)  # type: ignore[arg-type, var-annotated]
    batches = BatchSampler(sampler, 8, drop_last=True)
    sampler.set_epoch(6)
    later = next_epoch(batches)
    assert sampler.epoch == 6
    sampler.set_epoch(7)
    assert later is not None
    assert later.tolist() == [index for batch in batches for index in batch]
    assert next_epoch(BatchSampler(RandomSampler(SAMPLES), 8, drop_last=True)) is None


def test_a_sampler_that_may_wait_for_other_ranks_is_not_copied() -> None:
    with pytest.raises(NotPlannable, match="may wait for other ranks"):
        learn(DrawsAsItGoes(), iter(DrawsAsItGoes()), world=2)
    assert len(learn(DrawsAsItGoes(), iter(DrawsAsItGoes()), world=2, is_chosen=True).indices) == 50


class Broken(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield [1, 2]
        yield ["three"]


def test_indices_that_are_no_numbers_are_no_plan() -> None:
    with pytest.raises(NotPlannable, match="can't be copied"):
        learn(Broken(), iter(Broken()), world=1)
    names: Any = BatchSampler(SubsetRandomSampler(["a", "b"]), 2, drop_last=False)  # type: ignore[list-item]
    iterator = iter(names)
    with pytest.raises(NotPlannable, match="can't be copied"):
        learn(names, iterator, world=1)
    assert sorted(next(iterator)) == ["a", "b"]


def test_the_rest_of_an_epoch_is_learned_from_the_iterator_of_the_loader() -> None:
    """A loader that goes on with an epoch has passed over some batches, and gives the others once."""
    batches = BatchSampler(RandomSampler(SAMPLES), 8, drop_last=False)
    seed_all()
    plain = list(batches)[3:]
    seed_all()
    order = learn(batches, islice(batches, 3, None), world=1)
    assert order.batches is not None
    assert list(order.batches) == plain
    assert order.indices.tolist() == [index for batch in plain for index in batch]


def test_an_epoch_of_more_samples_than_are_learned_is_given_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "SAMPLES_MAX", 40)
    batches = BatchSampler(SequentialSampler(SAMPLES), 8, drop_last=False)
    order = learn(batches, iter(batches), world=1)
    assert (len(order.indices), list(order.batches or [])) == (40, list(batches))


class Failing(Sequence[int]):
    """Loses its samples while an epoch begins."""

    def __len__(self) -> int:
        raise OSError("the data set is gone")

    def __getitem__(self, index: Any) -> Any:
        raise OSError("the data set is gone")


def test_the_program_sees_the_error_of_its_sampler() -> None:
    batches = BatchSampler(SequentialSampler(Failing()), 8, drop_last=False)
    order = learn(batches, iter(batches), world=1)
    with pytest.raises(OSError, match="the data set is gone"):
        next(order.batches or iter([]))


def test_a_generator_of_the_program_is_as_far_as_without_a_plan() -> None:
    """RandomSampler draws once more after its last index, so it is not drained."""
    generator = shared_generator()
    sampler = RandomSampler(SAMPLES, generator=generator)
    iterator = iter(sampler)
    before = generator.get_state()
    order = learn(sampler, iterator, world=1)
    assert torch.equal(before, generator.get_state())
    assert order.batches is None
    assert list(iterator) == order.indices.tolist()


def test_a_loader_of_no_samples_has_an_empty_order() -> None:
    for generator in (None, shared_generator()):
        batches = BatchSampler(SequentialSampler([]), 8, drop_last=False)
        assert len(learn(batches, iter(batches), world=1).indices) == 0
        shuffled = SubsetRandomSampler([], generator=generator)
        assert len(learn(shuffled, iter(shuffled), world=1).indices) == 0


def test_a_copy_that_gave_another_order_is_noticed() -> None:
    order = LearnedOrder(array("I", [4, 5, 6]), None)
    assert order.agrees(0, [4, 5])
    assert order.agrees(2, 6)
    assert not order.agrees(1, [5, 7])
    assert not order.agrees(3, [8])


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from itertools.count()


def test_a_sampler_without_an_end_holds_the_program_up_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "LEARN_S_MAX", 0.05)
    begin_s = time.monotonic()
    order = learn(Endless(), iter(Endless()), world=1)
    assert time.monotonic() - begin_s < 5
    count = len(order.indices)
    assert order.indices[: count // 2].tolist() == list(range(count // 2))
    assert order.agrees(count - 1, [count - 1, count])
    assert not order.agrees(0, [1])


def test_a_sampler_without_an_end_is_drained_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program waits for it. Programs give such a sampler as many samples as they may ever need."""
    monkeypatch.setattr(samplers, "LEARN_S_MAX", 0.01)

    def build() -> BatchSampler:
        torch.manual_seed(5)
        return BatchSampler(RandomSampler(SAMPLES, replacement=True, num_samples=10**9), 8, drop_last=False)

    batches = build()
    order = learn(batches, iter(batches), world=1)
    assert not order.is_whole
    assert 0 < len(order.indices) < samplers.SAMPLES_MAX
    assert order.batches is not None
    count = len(order.indices) // 8 + 3
    taken = list(islice(order.batches, count))
    assert taken == list(islice(build(), count))
    assert order.indices.tolist() == [index for batch in taken[:-3] for index in batch]
