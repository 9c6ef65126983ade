"""Learn the order that a sampler is about to give, without a change to what the program sees.

The samplers of torch itself are *drained*: they take all their random numbers before their first index, from a
generator of their own, so the program can't tell. Of any other sampler a *copy* runs ahead, and the states of the
random generators are put back; the original then runs as it would have. A sampler that shares other state with its
copy is not copied (`copied_code.py`). A copy may be wrong, if the sampler depends on what the program does meanwhile.
Each batch is compared with it, and the plan ends at the first difference.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import time
from array import array
from collections.abc import Iterator
from inspect import GEN_CREATED, getgeneratorstate
from itertools import chain, islice
from types import GeneratorType
from typing import Any

from .copied_code import KNOWN, SharesState, check_copy
from .interruptions import is_interruption, raise_interruption
from .stand_ins import RefusedParts, stand_in_for

SAMPLES_MAX = 50_000_000
"""Samples of one epoch that are learned. An order without an end is learned so far, at 4 bytes a sample."""
LEARN_S_MAX = 2.0
"""Seconds for which a sampler is drained, or its copy runs. What it has not given by then is not learned."""
_COPIED_AT_ONCE = 1024
_TAKEN_AT_ONCE = 1 << 16
_SHARED = ("data_source", "dataset", "data_set", "_dataset")
"""Attributes of a sampler that a copy shares with it: data sets can be as large as the memory."""

_STATEFUL_BATCHES = ("torchdata.stateful_dataloader.sampler", "BatchSampler")
_SEEDED = {
    ("torch.utils.data.distributed", "DistributedSampler"),
    ("torchdata.stateful_dataloader.sampler", "StatefulDistributedSampler"),
    ("accelerate.data_loader", "SeedableRandomSampler"),
    ("headrace.integrations.torch_data", "_EpochBatches"),
}
"""Samplers whose next epoch has the same seed and the next number."""
_INDEX_MAX = (1 << 32) - 1
_DEPTH_MAX = 8


class NotPlannable(Exception):
    """Says why the order of a loader can't be learned."""


class NotThisEpoch(NotPlannable):
    """Says why the order of the present epoch can't be learned. That of the next one may be known."""


class LearnedOrder:
    """The order of one epoch, from the present position on. indices: of the samples, as unsigned 4-byte numbers.
    batches: what the loader must iterate over instead of its own iterator, or None if that is untouched, and the order
    comes from a copy. is_whole: no samples come after the indices."""

    def __init__(self, indices: array[int], batches: Iterator[Any] | None, *, is_whole: bool = True) -> None:
        self.indices = indices
        self.batches = batches
        self.is_whole = is_whole

    def agrees(self, position: int, batch: Any) -> bool:
        """Return whether the loader's own iterator gives at a position what the copy gave."""
        samples = list(batch) if hasattr(batch, "__len__") else [batch]
        learned = self.indices[position : position + len(samples)].tolist()
        is_beyond = not self.is_whole and position + len(samples) > len(self.indices)
        return is_beyond or bool(learned == samples)


def learn(
    index_sampler: Any,
    iterator: Any,
    *,
    world: int,
    is_chosen: bool = False,
    data_set: Any = None,
    skipped: int = 0,
) -> LearnedOrder:
    """Return the order of the epoch that begins now. Called before the loader takes its first index.

    index_sampler: gives batches of indices, or indices. iterator: of it, which the loader has. world: ranks of the job.
    is_chosen: the program itself asked for this loader, so that a sampler of any package may be copied, unless it
    shares state. data_set: for which a copy has a stand-in. skipped: batches that a loader of torchdata passes over, as
    it goes on with an epoch. Raises NotPlannable.
    """
    kind = type(index_sampler)
    order = _permutation(index_sampler, iterator)
    if order is not None:
        return LearnedOrder(order, None)
    if _is_drained(index_sampler):
        return _drained(iterator, None)
    if kind is sys.modules["torch.utils.data"].BatchSampler and _is_drained(index_sampler.sampler):
        return _drained(iterator, index_sampler)
    if _is_stateful_batches(index_sampler) and _is_drained(index_sampler.sampler):
        return _drained_within(index_sampler, iterator)
    if world > 1 and not is_chosen and not _is_known(index_sampler):
        raise NotPlannable(
            f"{_name_of(index_sampler)} may wait for other ranks; headrace.plan.watch(loader) permits a copy"
        )
    indices, is_whole = _run_copy(index_sampler, iterator, data_set, skipped)
    return LearnedOrder(indices, None, is_whole=is_whole)


def _drained(iterator: Any, batch_sampler: Any) -> LearnedOrder:
    """Take all that the loader's own iterator gives. batch_sampler: None for an iterator that gives indices."""
    indices = array("I")
    first: Iterator[Any] = iter(())
    rest: Iterator[Any] = iterator
    is_whole = True
    try:
        is_whole = _take_all(indices, iterator, 0 if batch_sampler is None else batch_sampler.batch_size)
    except BaseException as error:  # noqa: BLE001 - the program sees it where its sampler would have raised it
        if is_interruption(error):
            first = _raising(error)
        else:
            rest = _raising(error)
    batches = chain(indices, rest)
    if batch_sampler is not None and batch_sampler.drop_last:
        batches = chain(_batches_of(indices, batch_sampler.batch_size), rest)
    elif batch_sampler is not None:
        batches = chain(_batched(batch_sampler, chain(indices, chain.from_iterable(rest))))
    return LearnedOrder(indices, chain(first, batches), is_whole=is_whole)


def _take_all(indices: array[int], iterator: Any, batch_size: int) -> bool:
    """Append what an iterator gives, for a while: the program waits for it. Return whether that was all. batch_size: 0
    for an iterator that gives indices."""
    size, end_s = max(1, batch_size), time.monotonic() + LEARN_S_MAX
    while len(indices) + size <= SAMPLES_MAX and time.monotonic() < end_s:
        count = max(1, min(_TAKEN_AT_ONCE, SAMPLES_MAX - len(indices)) // size)
        end = len(indices) + count * size
        part = islice(iterator, count)
        indices.extend(chain.from_iterable(part) if batch_size else part)
        if len(indices) < end:
            return True
    return False


def _batches_of(indices: array[int], batch_size: int) -> Iterator[list[int]]:
    for start in range(0, len(indices), batch_size):
        yield indices[start : start + batch_size].tolist()


def _batched(batch_sampler: Any, indices: Iterator[int]) -> Iterator[list[int]]:
    """Give batches as torch's BatchSampler does. The program may change the size of those that come next."""
    while batch := [*islice(indices, batch_sampler.batch_size)]:
        yield batch


def _raising(error: BaseException) -> Iterator[Any]:
    raise error
    yield


def _is_stateful_batches(index_sampler: Any) -> bool:
    kind = type(index_sampler)
    return (kind.__module__, kind.__name__) == _STATEFUL_BATCHES


def _drained_within(index_sampler: Any, iterator: Any) -> LearnedOrder:
    """Take all indices from the sampler within the iterator of a StatefulDataLoader. The iterator itself, whose state
    the program may save, goes on as it would."""
    taken = _drained(iterator.sampler_iter, None)
    setattr(iterator, "sampler_iter", taken.batches)  # noqa: B010 - an object of torchdata
    return LearnedOrder(_whole_batches(index_sampler, taken.indices), None, is_whole=taken.is_whole)


def _whole_batches(index_sampler: Any, indices: array[int]) -> array[int]:
    if getattr(index_sampler, "drop_last", False):
        return indices[: len(indices) // index_sampler.batch_size * index_sampler.batch_size]
    return indices


def next_epoch(index_sampler: Any) -> array[int] | None:
    """Return the order of the epoch after this one, where a seed and the number of the epoch alone decide it. Called in
    another thread than the program's, so no generator of the program may be used, nor its own code."""
    sampler = _innermost(index_sampler)
    if not _is_seeded(sampler) or not _is_known(index_sampler):
        return None
    later = copy.deepcopy(index_sampler, _shared_by(index_sampler))
    _innermost(later).set_epoch(sampler.epoch + 1)
    return array("I", islice(_flat(later), SAMPLES_MAX))


def _is_seeded(sampler: Any) -> bool:
    kind = type(sampler)
    if (kind.__module__, kind.__name__) in _SEEDED:
        return bool(getattr(sampler, "shuffle", True))
    return False


def inner_of(sampler: Any) -> Any:
    """Return the sampler within a sampler, or None."""
    for name in ("batch_sampler", "sampler"):
        inner = getattr(sampler, name, None)
        if inner is not None:
            return inner
    # Lightning's wrapper, in a job of several ranks, has the sampler of the program in place of a data set
    return getattr(getattr(sampler, "dataset", None), "_sampler", None)


def _innermost(sampler: Any) -> Any:
    for _ in range(_DEPTH_MAX):
        inner = inner_of(sampler)
        if inner is None:
            break
        sampler = inner
    return sampler


def batch_size_of(index_sampler: Any) -> int:
    """Return the samples of a batch. Some samplers of batches say it by that within."""
    for _ in range(_DEPTH_MAX):
        size = getattr(index_sampler, "batch_size", getattr(index_sampler, "micro_batch_size", None))
        if isinstance(size, int):
            return max(1, size)
        index_sampler = inner_of(index_sampler)
    return 1


def _is_drained(sampler: Any) -> bool:
    """Return whether a sampler takes nothing from the program between its first index and its last."""
    torch_data = sys.modules["torch.utils.data"]
    kind = type(sampler)
    if kind is torch_data.RandomSampler:
        # from a generator of the program it draws once more after its last index
        return sampler.generator is None and len(sampler.data_source) <= _INDEX_MAX
    if kind is torch_data.SubsetRandomSampler:
        return all(type(index) is int and 0 <= index <= _INDEX_MAX for index in sampler.indices)
    return kind in (
        torch_data.SequentialSampler,
        torch_data.WeightedRandomSampler,
        getattr(torch_data, "DistributedSampler", None),
    )


def _is_known(sampler: Any) -> bool:
    """Return whether a sampler and those inside it belong to packages that are known."""
    for _ in range(_DEPTH_MAX):
        if sampler is None or isinstance(sampler, (list, range, array)):
            return True
        if type(sampler).__module__.split(".")[0] not in KNOWN:
            return False
        sampler = inner_of(sampler)
    return False


def _permutation(index_sampler: Any, iterator: Any) -> array[int] | None:
    """Return what a sampler is about to give that draws a permutation before its first index. Nothing is drawn from its
    own generator. It is a RandomSampler with a generator of the program, or a SubsetRandomSampler: the program may
    change the indices of that within an epoch. None for any other sampler, and for one that has begun.

    A list of Python's numbers is not made: 10,000,000 samples take 0.3 s, and a copy of the sampler 2 s.
    """
    torch_data = sys.modules["torch.utils.data"]
    sampler = index_sampler
    if type(index_sampler) is torch_data.BatchSampler:
        sampler = index_sampler.sampler
    elif _is_stateful_batches(index_sampler):
        sampler, iterator = index_sampler.sampler, getattr(iterator, "sampler_iter", None)
    if not isinstance(iterator, GeneratorType) or _has_begun(iterator):
        return None
    if type(sampler) is torch_data.SubsetRandomSampler and _is_drained(sampler):
        order = _drawn(len(sampler.indices), sampler.generator)
        return order and _whole_batches(index_sampler, array("I", map(sampler.indices.__getitem__, order)))
    if type(sampler) is not torch_data.RandomSampler or sampler.replacement or sampler.generator is None:
        return None
    count = len(sampler.data_source)
    order = _drawn(count, sampler.generator) if sampler.num_samples == count else None
    return order and _whole_batches(index_sampler, order)


def _drawn(count: int, generator: Any) -> array[int] | None:
    """Return the permutation that a generator draws next; None for none, or on another device. generator: None for that
    of torch."""
    torch = sys.modules["torch"]
    generator = torch.default_generator if generator is None else generator
    if not 0 < count <= SAMPLES_MAX or generator.device.type != "cpu":
        return None
    ahead = torch.Generator()
    ahead.set_state(generator.get_state())
    order = array("I", bytes(4 * count))
    torch.frombuffer(order, dtype=torch.int32).copy_(torch.randperm(count, generator=ahead))
    return order


def _run_copy(index_sampler: Any, iterator: Any, data_set: Any, skipped: int) -> tuple[array[int], bool]:
    """Run a copy to its end, and put the random generators back. Return its indices, and whether these are all."""
    # other threads may draw meanwhile, so nothing is put back needlessly
    states = None if _has_own_generator(index_sampler) else _random_states()
    try:
        batches = _copied(index_sampler, iterator, data_set, skipped, refusals := RefusedParts())
        learned = _first_indices(_flat(batches))
        refusals.check()
        return learned
    except NotPlannable:
        raise
    except SharesState as error:
        raise NotPlannable(f"a copy of its sampler would share {error}") from None
    except Exception as error:  # noqa: BLE001 - whatever a foreign sampler raises, the job goes on without a plan
        raise_interruption(error)
        raise NotPlannable(f"{_name_of(index_sampler)} can't be copied: {error!r}") from None
    finally:
        if states is not None:
            _put_back(states)


def _has_own_generator(index_sampler: Any) -> bool:
    """Return whether a copy draws from a copied generator only."""
    torch_data = sys.modules["torch.utils.data"]
    sampler = index_sampler.sampler if type(index_sampler) is torch_data.BatchSampler else index_sampler
    return type(sampler) is torch_data.RandomSampler and sampler.generator is not None


def _first_indices(indices: Iterator[int]) -> tuple[array[int], bool]:
    """Take indices for a while: the program waits for it."""
    order, end_s = array("I"), time.monotonic() + LEARN_S_MAX
    while len(order) < SAMPLES_MAX and time.monotonic() < end_s:
        part = array("I", islice(indices, _COPIED_AT_ONCE))
        order.extend(part)
        if len(part) < _COPIED_AT_ONCE:
            return order, True
    return order, False


def _copied(
    index_sampler: Any, iterator: Any, data_set: Any, skipped: int, refusals: RefusedParts
) -> Iterator[Any]:
    """Return a copy of an iterator. A generator can't be copied; as it has not begun, the sampler is. Raise SharesState
    if the copy could change something of the program."""
    shared = {**_shared_by(index_sampler), **({} if data_set is None else {id(data_set): data_set})}
    if check_copy(index_sampler, iterator, stood_for=shared):
        shared = {key: stand_in_for(value, refusals) for key, value in shared.items()}
    if not isinstance(iterator, GeneratorType):
        try:
            return iter(copy.deepcopy(iterator, dict(shared)))
        except Exception as error:  # noqa: BLE001 - it has a generator within
            raise_interruption(error)
            if _has_begun(getattr(iterator, "sampler_iter", None)):
                raise NotThisEpoch(f"{_name_of(index_sampler)} continues an epoch") from None
    elif _has_begun(iterator):
        raise NotThisEpoch(f"{_name_of(index_sampler)} continues an epoch")
    return islice(copy.deepcopy(index_sampler, shared), skipped if isinstance(iterator, islice) else 0, None)


def _has_begun(iterator: Any) -> bool:
    return isinstance(iterator, GeneratorType) and getgeneratorstate(iterator) != GEN_CREATED


def _flat(batches: Any) -> Iterator[int]:
    for batch in batches:
        if isinstance(batch, int):
            yield batch
        else:
            yield from batch


def _shared_by(sampler: Any) -> dict[int, Any]:
    """Return the objects that the copy of a sampler shares with it, in the form of deepcopy's memo."""
    shared: dict[int, Any] = {}
    for _ in range(_DEPTH_MAX):
        for name in _SHARED:
            value = getattr(sampler, name, None)
            if value is not None and getattr(value, "_sampler", None) is None:
                shared[id(value)] = value
        sampler = inner_of(sampler)
    return shared


def _random_states() -> tuple[Any, Any, Any]:
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return (
        random.getstate(),
        torch.random.get_rng_state(),
        None if numpy is None else numpy.random.get_state(legacy=False),
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
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1
    return (rank, world) if 0 <= rank < world else (0, 1)
