"""Read cached samples of an epoch first: `Loader(order="cached-first")` of `torch_data`. It needs no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headrace.base.errors import UsageError
from headrace.plan.substitution import CachedFirstOrder, before_of, merged_state


class CachedSamples(Protocol):
    """A data set that says which samples are cached on this host, without fetching them."""

    def __len__(self) -> int: ...
    def are_cached(self, indices: Sequence[int]) -> list[bool]: ...


class Substitution:
    """Holds what one rank has read of its present epoch, and gives the batches that are left."""

    def __init__(self, data: object, *, rank: int, world: int, drop_last: bool) -> None:
        if not hasattr(data, "are_cached"):
            raise UsageError(
                'order="cached-first"',
                why=f"{type(data).__name__} does not say which samples are cached",
                hint="use Samples",
            )
        self._data: Any = data
        self._data.are_cached([])
        self._rank, self._world, self._drop_last = rank, world, drop_last
        self._before = b""
        self._order = self._new_order()

    def batches(self, epoch: Sequence[int], size: int) -> CachedFirstBatches:
        """Return the batches that were not handed to the training. epoch: all samples in their seeded order."""
        state, self._order = self._order.state(), self._new_order()
        self._order.restore(state)
        return CachedFirstBatches(self._data, epoch, self._order, size, drop_last=self._drop_last)

    def state(self) -> dict[str, Any]:
        return self._order.state()

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from this rank's state. None: at the begin of an epoch."""
        self._before = b"" if state is None else before_of(state)
        self._order = self._new_order()
        if state is not None:
            self._order.restore(state)

    def load_all(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from the states of all ranks, of any world size."""
        self._before = merged_state(states, drop_last=self._drop_last)
        self._order = self._new_order()

    def _new_order(self) -> CachedFirstOrder:
        return CachedFirstOrder(
            len(self._data),
            rank=self._rank,
            world=self._world,
            drop_last=self._drop_last,
            before=self._before,
        )


class CachedFirstBatches:
    """The batches of a DataLoader, as lists of sample numbers. Its workers read ahead: `confirm` notes the next batch
    as handed to the training."""

    def __init__(
        self,
        data: CachedSamples,
        epoch: Sequence[int],
        order: CachedFirstOrder,
        size: int,
        *,
        drop_last: bool,
    ) -> None:
        self._data, self._epoch, self._order, self._size = data, epoch, order, size
        self._least = size if drop_last else 1
        self._pending: deque[list[int]] = deque()

    def __len__(self) -> int:
        left = len(self._order)
        return left // self._size if self._least > 1 or self._size == 1 else -(-left // self._size)

    def __iter__(self) -> Iterator[list[int]]:
        while len(self._order) >= self._least:
            offsets = self._order.take(self._size, self._are_cached)
            self._pending.append(offsets)
            yield [self._epoch[self._order.share[offset]] for offset in offsets]

    def confirm(self) -> None:
        self._order.mark_read(self._pending.popleft())

    def _are_cached(self, positions: Sequence[int]) -> list[bool]:
        return self._data.are_cached([self._epoch[position] for position in positions])
