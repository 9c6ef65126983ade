"""Learn the order that a sampler is about to give, without a change to what the program sees.

The samplers of torch itself are *drained*: they take all their random numbers before their first index, from a
generator of their own, so the program can't tell. Of any other sampler a *copy* runs ahead, and the states of the
random generators are put back; the original then runs as it would have. A copy may be wrong, if the sampler depends
on what the program does meanwhile. The node sees that, and gives the order up.
"""

from __future__ import annotations

import copy
import os
import random
import sys
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any

SAMPLES_MAX = 50_000_000
"""Samples of one epoch that are learned. An order without an end is learned so far, at 4 bytes a sample."""
KNOWN = (
    *("torch", "torchvision", "torchdata", "accelerate", "transformers", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "timm", "headrace"),
)
"""Packages whose samplers never wait for another rank. A copy of one that does could make a job hang."""
_SHARED = ("data_source", "dataset", "data_set", "_dataset")
"""Attributes of a sampler that a copy shares with it: data sets can be as large as the memory."""


class NotPlannable(Exception):
    """Says why the order of a loader can't be learned."""


class Replayed:
    """Give the indices of a drained sampler. __len__: as the sampler's, which a batch sampler may ask for."""

    def __init__(self, indices: array[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class LearnedOrder:
    """The order of one epoch. indices: of the samples, as unsigned 4-byte numbers. batches: what the loader must
    iterate over instead of its own iterator, or None if that is untouched."""

    def __init__(self, indices: array[int], batches: Iterator[Any] | None) -> None:
        self.indices = indices
        self.batches = batches


def learn(index_sampler: Any, *, world: int, is_chosen: bool = False) -> LearnedOrder:
    """Return the order of the epoch that begins now. Called before the loader takes its first index.

    index_sampler: gives batches of indices, or indices. world: ranks of the job. is_chosen: the program itself asked
    for this loader, so that a copy of any sampler may run. Raises NotPlannable.
    """
    torch_data = sys.modules["torch.utils.data"]
    if type(index_sampler) is torch_data.BatchSampler and _is_drained(index_sampler.sampler):
        indices = _as_array(index_sampler.sampler)
        batches = type(index_sampler)(Replayed(indices), index_sampler.batch_size, index_sampler.drop_last)
        if index_sampler.drop_last:
            indices = indices[: len(indices) // index_sampler.batch_size * index_sampler.batch_size]
        return LearnedOrder(indices, iter(batches))
    if _is_drained(index_sampler):
        indices = _as_array(index_sampler)
        return LearnedOrder(indices, iter(indices))
    if world > 1 and not is_chosen and not _is_known(index_sampler):
        raise NotPlannable(
            f"{_name_of(index_sampler)} may wait for other ranks; headrace.plan.watch(loader) permits a copy"
        )
    return LearnedOrder(_run_copy(index_sampler), None)


def next_epoch(index_sampler: Any) -> array[int] | None:
    """Return the order of the epoch after this one, where a seed alone decides it: torch's DistributedSampler."""
    sampler = getattr(index_sampler, "sampler", index_sampler)
    distributed = getattr(sys.modules.get("torch.utils.data.distributed"), "DistributedSampler", None)
    if type(sampler) is not distributed or not sampler.shuffle:
        return None
    later = copy.copy(sampler)
    later.epoch = sampler.epoch + 1
    indices = _as_array(later)
    if getattr(index_sampler, "drop_last", False):
        indices = indices[: len(indices) // index_sampler.batch_size * index_sampler.batch_size]
    return indices


def _is_drained(sampler: Any) -> bool:
    """Return whether a sampler takes nothing from the program between its first index and its last."""
    torch_data = sys.modules["torch.utils.data"]
    kind = type(sampler)
    if kind is torch_data.RandomSampler:
        # with a generator of the program it draws from that as it goes, and others may do so too
        return sampler.generator is None or not (
            sampler.replacement or sampler.num_samples != len(sampler.data_source)
        )
    return kind in (
        torch_data.SequentialSampler,
        torch_data.SubsetRandomSampler,
        torch_data.WeightedRandomSampler,
        getattr(torch_data, "DistributedSampler", None),
    )


def _as_array(sampler: Any) -> array[int]:
    try:
        return array("I", islice(iter(sampler), SAMPLES_MAX))
    except (TypeError, OverflowError):
        raise NotPlannable(f"the indices of {_name_of(sampler)} are not numbers") from None


def _is_known(sampler: Any) -> bool:
    """Return whether a sampler and those inside it belong to packages that are known."""
    for _ in range(8):
        if sampler is None or isinstance(sampler, (list, range, array, Replayed)):
            return True
        if type(sampler).__module__.split(".")[0] not in KNOWN:
            return False
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return False


def _run_copy(index_sampler: Any) -> array[int]:
    """Run a copy of a sampler to its end, and put the random generators back."""
    states = _random_states()
    try:
        return array("I", islice(_flat(copy.deepcopy(index_sampler, _shared_by(index_sampler))), SAMPLES_MAX))
    except Exception as error:  # noqa: BLE001 - whatever a foreign sampler raises, the job goes on without a plan
        raise NotPlannable(f"{_name_of(index_sampler)} can't be copied: {error!r}") from None
    finally:
        _put_back(states)


def _flat(batches: Any) -> Iterator[int]:
    for batch in batches:
        if isinstance(batch, int):
            yield batch
        else:
            yield from batch


def _shared_by(sampler: Any) -> dict[int, Any]:
    """Return the objects that the copy of a sampler shares with it, in the form of deepcopy's memo."""
    shared: dict[int, Any] = {}
    for _ in range(8):
        for name in _SHARED:
            value = getattr(sampler, name, None)
            if value is not None:
                shared[id(value)] = value
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if sampler is None:
            break
    return shared


def _random_states() -> tuple[Any, Any, Any]:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return (
        random.getstate(),
        torch.random.get_rng_state(),
        None if numpy is None else numpy.random.get_state(),
    )


def _put_back(states: tuple[Any, Any, Any]) -> None:
    random.setstate(states[0])
    sys.modules["torch"].random.set_rng_state(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


def _name_of(sampler: Any) -> str:
    return f"{type(sampler).__module__}.{type(sampler).__qualname__}"


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, as torch.distributed or its environment says."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
