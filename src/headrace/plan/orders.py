"""Know the order in which readers will read files, and merge the orders of all readers into each file's next use.

A reader is one rank with one loader. It reads samples, and a sample is one file. The caller numbers the files; all
streams of one `MergedOrders` share the numbers. Positions count samples from the first sample of the first epoch.
No I/O, no clock: times are seconds from now, as the readers' measured step times give them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from headrace.base.errors import UsageError
from headrace.plan.extent_map import ExtentOrder
from headrace.plan.inverse import STEP_SAMPLES, DirectTable, HashedTable

STEP_S_UNKNOWN = 1.0
"""The step time of a reader before one was measured: enough to put its own reads in order."""


class KnownEpoch:
    """The order of one epoch of one reader, with the table that finds a file in it.

    start: the position of its first sample. 8 bytes a sample where each file of a range is read once: 4 of the order, 4
    of the table. Up to 8.5 bytes for an order of a few of many files, and 4 more where files are read twice. An order
    of extents (`ExtentOrder`) has no table: nobody asks for the next use of a part of a file.
    """

    def __init__(self, start: int, order: array[int] | ExtentOrder) -> None:
        self.start, self.end = start, start + len(order)
        self.order = order
        self._table: DirectTable | HashedTable | None = None
        self._steps = None if isinstance(order, ExtentOrder) else self._build_steps(order)

    @property
    def has_table(self) -> bool:
        """Return whether files can be found in the order, now or when the table is complete."""
        return not isinstance(self.order, ExtentOrder)

    @property
    def is_built(self) -> bool:
        return self._steps is None

    def step(self) -> bool:
        """Do one step of the work that makes the table, below a millisecond. Return whether it is complete."""
        if self._steps is not None and next(self._steps, self) is self:
            self._steps = None
        return self._steps is None

    def find(self, file: int, position: int) -> int | None:
        """Return the first position from `position` on at which the file is read. None also before the table is
        complete."""
        if self._steps is not None or self._table is None:
            return None
        index = self._table.find(file, max(0, position - self.start))
        return None if index < 0 else self.start + index

    def has(self, file: int) -> bool:
        return self._steps is None and self._table is not None and self._table.has(file)

    def _build_steps(self, order: array[int]) -> Iterator[None]:
        first_file, last_file = 0xFFFFFFFF, 0
        for start in range(0, len(order), 8 * STEP_SAMPLES):
            part = order[start : start + 8 * STEP_SAMPLES]
            first_file, last_file = min(first_file, min(part)), max(last_file, max(part))
            yield
        file_count = last_file - first_file + 1
        if file_count <= len(order):
            self._table = DirectTable(order, first_file, file_count)
        else:
            self._table = HashedTable(order)
        yield from self._table.steps()


class PlannedStream:
    """The known order of one reader, in one epoch or in several that follow each other.

    order: file numbers of 4 bytes (`array("I")`), which the stream keeps without a copy, or an order of extents.
    batch_size: numbers a step.
    """

    def __init__(self, order: array[int] | ExtentOrder, batch_size: int) -> None:
        if batch_size < 1:
            raise UsageError(f"batch size {batch_size} of a plan", why="it must be at least 1")
        self.batch_size = batch_size
        self.position = 0
        self.step_s = STEP_S_UNKNOWN
        self.epochs: tuple[KnownEpoch, ...] = ()
        self.extend(order)

    @property
    def end(self) -> int:
        """Return the position after the last one that is known."""
        return self.epochs[-1].end if self.epochs else 0

    @property
    def is_built(self) -> bool:
        return all(epoch.is_built for epoch in self.epochs)

    def extend(self, order: array[int] | ExtentOrder) -> None:
        """Append the order of the next epoch. It can be asked for files when `build` is done with it."""
        if isinstance(order, array) and (order.typecode != "I" or order.itemsize != 4):
            raise UsageError(
                "the order of a plan", why=f"its type is {order.typecode!r}", hint="use array('I')"
            )
        if order:
            self.epochs = (*self.epochs, KnownEpoch(self.end, order))
            self._release()

    def build(self, count: int) -> bool:
        """Make the tables of about `count` further samples. Return whether all are complete.

        4,096 samples take less than a millisecond; a caller on an event loop does that many at a time.
        """
        steps = -(-count // STEP_SAMPLES)
        for epoch in self.epochs:
            while not epoch.is_built:
                if steps <= 0:
                    return False
                epoch.step()
                steps -= 1
        return True

    def advance(self, position: int) -> None:
        """Set how many samples have been drawn. A position before the present one changes nothing."""
        self.position = max(self.position, position)
        self._release()

    def set_step_s(self, step_s: float) -> None:
        """Set the measured seconds of one batch."""
        if not 0 <= step_s < math.inf:
            raise UsageError(f"step time {step_s} of a plan", why="it must be a number of seconds")
        self.step_s = step_s

    def next_position(self, file: int) -> int | None:
        """Return the first position from the present one on at which the file is read; None: none is known."""
        for epoch in self.epochs:
            position = epoch.find(file, self.position)
            if position is not None:
                return position
        return None

    def knows(self, file: int) -> bool:
        """Return whether an epoch that is kept reads the file, before the present position or after it."""
        return any(epoch.has(file) for epoch in self.epochs)

    def upcoming(self, start: int, count: int) -> Sequence[int]:
        """Return up to `count` files from position `start` on. Fewer where an epoch ends; none beyond what is kept."""
        for epoch in self.epochs:
            if epoch.start <= start < epoch.end:
                index = start - epoch.start
                return epoch.order[index : index + max(0, count)]
        return ()

    def seconds_until(self, position: int) -> float:
        """Return the seconds until the batch of a position begins: 0 for the next batch, and for what was drawn."""
        return max(0, position - self.position) // self.batch_size * self.step_s

    def deadlines(self) -> Iterator[tuple[float, int]]:
        """Yield (deadline_s, file) from the present position on. All deadlines are those of the first value."""
        drawn, step_s = self.position, self.step_s
        for epoch in self.epochs:
            for position in range(max(epoch.start, drawn), epoch.end):
                yield (position - drawn) // self.batch_size * step_s, epoch.order[position - epoch.start]

    def _release(self) -> None:
        """Drop epochs that are past. The last one stays: it says which files the reader reads at all."""
        kept = tuple(epoch for epoch in self.epochs[:-1] if epoch.end > self.position)
        self.epochs = (*kept, *self.epochs[-1:])


class NextUse(NamedTuple):
    """The soonest next use of a file, over all streams."""

    deadline_s: float
    stream: PlannedStream
    position: int


class MergedOrders:
    """The orders of all readers, as one: when is a file used next, what is needed soonest, what latest."""

    def __init__(self) -> None:
        self._streams: dict[Hashable, PlannedStream] = {}

    @property
    def streams(self) -> tuple[PlannedStream, ...]:
        return tuple(self._streams.values())

    def add(self, key: Hashable, stream: PlannedStream) -> None:
        """Add the stream of a reader, in the place of an earlier one with this key."""
        self._streams[key] = stream

    def remove(self, key: Hashable) -> None:
        """Remove a reader that has ended. An unknown key changes nothing."""
        self._streams.pop(key, None)

    def get(self, key: Hashable) -> PlannedStream | None:
        return self._streams.get(key)

    def advance(self, key: Hashable, position: int) -> None:
        """Set how many samples a reader has drawn. An unknown key changes nothing."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.advance(position)

    def build(self, count: int) -> bool:
        """Make the tables of about `count` further samples, as `PlannedStream.build`. Return whether all are made."""
        for stream in self._streams.values():
            if not stream.is_built:
                return stream.build(count) and all(other.is_built for other in self._streams.values())
        return True

    def next_use(self, file: int) -> NextUse | None:
        """Return the soonest next use of a file; None if no stream is known to read it again."""
        soonest: NextUse | None = None
        for stream in self._streams.values():
            position = stream.next_position(file)
            if position is not None:
                deadline_s = stream.seconds_until(position)
                if soonest is None or deadline_s < soonest.deadline_s:
                    soonest = NextUse(deadline_s, stream, position)
        return soonest

    def next_use_s(self, file: int) -> float | None:
        """Return the seconds until the soonest next use of a file; None if no stream is known to read it again."""
        use = self.next_use(file)
        return None if use is None else use.deadline_s

    def knows(self, file: int) -> bool:
        """Return whether a stream reads the file, or has read it in an epoch that is kept."""
        return any(stream.knows(file) for stream in self._streams.values())

    def deadlines(self, horizon_s: float, limit: int) -> Iterator[tuple[float, int]]:
        """Yield (deadline_s, file) by deadline, each file once at its soonest, from each stream's position on.

        It ends after the horizon, or after `limit` files.
        """
        yielded: set[int] = set()
        merged = heapq.merge(*(stream.deadlines() for stream in self.streams), key=itemgetter(0))
        for deadline_s, file in itertools.takewhile(lambda pair: pair[0] <= horizon_s, merged):
            if len(yielded) >= limit:
                return
            if file not in yielded:
                yielded.add(file)
                yield deadline_s, file

    def furthest(self, is_candidate: Callable[[int], bool]) -> Iterator[int]:
        """Yield the candidates that have a next use, the furthest first.

        It walks the orders from their ends past all that is no candidate: `eviction.PlannedVictims` remembers where
        candidates are, and finds one at once.
        """
        walks = [_backwards(stream) for stream in self.streams]
        for _, stream, position, file in heapq.merge(*walks, key=itemgetter(0)):
            if is_candidate(file):
                use = self.next_use(file)
                if use is not None and use.stream is stream and use.position == position:
                    yield file


def _backwards(stream: PlannedStream) -> Iterator[tuple[float, PlannedStream, int, int]]:
    """Yield (minus deadline_s, stream, position, file) from the end of what is known."""
    for epoch in reversed(stream.epochs):
        for position in range(epoch.end - 1, max(epoch.start, stream.position) - 1, -1):
            yield -stream.seconds_until(position), stream, position, epoch.order[position - epoch.start]
