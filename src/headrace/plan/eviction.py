"""Choose the files to evict by their next use: the furthest is evicted first (Belady 1966), over all readers.

`PlannedVictims` marks resident files in the orders, each at one of its future uses. The last mark of an order is then
the file that this reader needs last, and no search passes over the files in between. A mark that is not the soonest
use of its file is moved when a search meets it, and a mark whose use is past when `catch_up` meets it.

Files that no plan knows are not chosen here: the policy of the store decides about them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.plan.orders import KnownEpoch, MergedOrders, PlannedStream
from headrace.plan.use_marks import UseMarks

SizeOf = Callable[[int], int]
"""Takes the number of a file and returns its bytes in the cache; 0: it is not there."""

CATCH_UP_COUNT = 2000
COUNT_MAX = 1 << 32
_CATCH_UP_OF_A_SEARCH = 200
_RETRIES = 64  # of files that were pinned: a search meets no more of them again


class _MarkedEpoch:
    """The marks of one epoch of one stream. It keeps the order until each mark that is past was moved."""

    def __init__(self, stream: PlannedStream, epoch: KnownEpoch) -> None:
        self.stream, self.epoch = stream, epoch
        self.marks = UseMarks(epoch.end - epoch.start)
        self.unscanned = iter(range(epoch.end - epoch.start))

    def file(self, index: int) -> int:
        return self.epoch.order[index]


class _Candidate(NamedTuple):
    deadline_s: float
    marked: _MarkedEpoch
    offset: int
    file: int


class PlannedVictims:
    """The files of one volume that plans know, by their next use.

    size_of: the bytes of a file on this volume. Call `insert` for each file that becomes resident; nothing needs to be
    called when a file is evicted. Call `catch_up` about once a step: `victims` does only a small part of that work.
    Memory: 0.13 bytes for each sample that is planned, and 100 for each resident file that is known to be used no more.
    """

    def __init__(self, orders: MergedOrders, size_of: SizeOf) -> None:
        self._orders, self._size_of = orders, size_of
        self._marked: dict[KnownEpoch, _MarkedEpoch] = {}
        self._finished: OrderedDict[int, None] = OrderedDict()
        self._set_aside: deque[int] = deque()
        self._lasts: dict[
            KnownEpoch, _Candidate
        ] = {}  # of one search: the last mark of each epoch that has marks

    def insert(self, file: int) -> None:
        """Add a file that is resident now."""
        self._place(file)

    def catch_up(self, count: int = CATCH_UP_COUNT) -> bool:
        """Follow what changed in the orders, in at most about `count` steps of a few microseconds. Return whether all
        is done."""
        steps = self._pending_steps()
        return any(next(steps, steps) is steps for _ in range(count))

    def victims(
        self, bytes_needed: int, is_pinned: Callable[[int], bool], count_max: int = COUNT_MAX
    ) -> list[int]:
        """Return files that together have the bytes, or all there are, in the order of their eviction. count_max: the
        most of them.

        Files that are used no more, as far as is known, come first. The files stay candidates until `size_of` returns 0
        for them.
        """
        self.catch_up(_CATCH_UP_OF_A_SEARCH)
        victims = self._used_no_more(bytes_needed, is_pinned, count_max)
        bytes_needed -= sum(map(self._size_of, victims))
        self._lasts.clear()
        candidates: dict[int, _Candidate] = {}
        while bytes_needed > 0 and len(victims) + len(candidates) < count_max:
            candidate = self._pop_furthest(is_pinned)
            if candidate is None:
                break
            if candidate.file not in candidates:  # two readers may need a file at the same time
                candidates[candidate.file] = candidate
                bytes_needed -= self._size_of(candidate.file)
        for candidate in candidates.values():
            candidate.marked.marks.set(candidate.offset)
        return [*victims, *candidates]

    def may_admit(
        self,
        file: int,
        bytes_needed: int = 1,
        is_pinned: Callable[[int], bool] | None = None,
        *,
        deadline_s: float | None = None,
        count_max: int = COUNT_MAX,
        must_suffice: bool = False,
    ) -> bool:
        """Return whether a file may be prefetched into a full volume: no planned file is evicted for it that is needed
        sooner, or as soon, and fewer than count_max. False for a file without a known use. True where no planned file
        is resident: others are left to the policy. deadline_s: of the next use, where no order tells it. must_suffice:
        the victims must have the bytes, as more may be known later."""
        if deadline_s is None:
            deadline_s = self._orders.next_use_s(file)
        if deadline_s is None:
            return False
        victims = self.victims(bytes_needed, is_pinned or _is_never_pinned, count_max)
        for victim in victims:
            victim_deadline_s = self._orders.next_use_s(victim)
            if victim_deadline_s is not None and victim_deadline_s <= deadline_s:
                return False
        if must_suffice and sum(map(self._size_of, victims)) < bytes_needed:
            return False
        return len(victims) < count_max

    def _place(self, file: int) -> None:
        """Mark a resident file at its soonest use."""
        use = self._orders.next_use(file)
        if use is None:
            if self._orders.knows(file):
                self._finished[file] = None
            return
        for epoch in use.stream.epochs:
            if epoch.start <= use.position < epoch.end:
                self._marks_of(use.stream, epoch).marks.set(use.position - epoch.start)
                self._lasts.pop(epoch, None)

    def _marks_of(self, stream: PlannedStream, epoch: KnownEpoch) -> _MarkedEpoch:
        marked = self._marked.get(epoch)
        if marked is None:
            marked = self._marked[epoch] = _MarkedEpoch(stream, epoch)
        return marked

    def _used_no_more(self, bytes_needed: int, is_pinned: Callable[[int], bool], count_max: int) -> list[int]:
        """Return resident files without a further known use, the one that was used first in front."""
        victims: list[int] = []
        while bytes_needed > 0 and self._finished and len(victims) < count_max:
            file, _ = self._finished.popitem(last=False)
            if not self._size_of(file):
                continue
            if self._orders.next_use(file) is not None or not self._orders.knows(file):
                self._place(file)
            elif is_pinned(file):
                self._set_aside.append(file)
            else:
                victims.append(file)
                bytes_needed -= self._size_of(file)
        for file in reversed(victims):
            self._finished[file] = None
            self._finished.move_to_end(file, last=False)
        return victims

    def _pop_furthest(self, is_pinned: Callable[[int], bool]) -> _Candidate | None:
        """Return the candidate that is needed last, without its mark."""
        while (candidate := self._furthest()) is not None:
            candidate.marked.marks.clear(candidate.offset)
            self._lasts.pop(candidate.marked.epoch, None)
            file = candidate.file
            if not self._size_of(file):
                continue
            use = self._orders.next_use(file)
            position = candidate.marked.epoch.start + candidate.offset
            if use is None or use.stream is not candidate.marked.stream or use.position != position:
                self._place(file)
            elif is_pinned(file):
                self._set_aside.append(file)
            else:
                return candidate
        return None

    def _furthest(self) -> _Candidate | None:
        furthest: _Candidate | None = None
        for epoch, marked in self._marked.items():
            last = self._lasts.get(epoch) or self._last_of(marked)
            if last is not None and (furthest is None or last.deadline_s > furthest.deadline_s):
                furthest = last
        return furthest

    def _last_of(self, marked: _MarkedEpoch) -> _Candidate | None:
        index = marked.marks.last()
        if index < 0:
            return None
        deadline_s = marked.stream.seconds_until(marked.epoch.start + index)
        last = self._lasts[marked.epoch] = _Candidate(deadline_s, marked, index, marked.file(index))
        return last

    def _pending_steps(self) -> Iterator[None]:
        """Do what changes of the orders ask for, one step for each value."""
        for _ in range(min(_RETRIES, len(self._set_aside))):
            self._place(self._set_aside.popleft())
            yield
        streams = self._orders.streams
        for stream in streams:
            for epoch in stream.epochs:
                if epoch.has_table and epoch.is_built:
                    self._marks_of(stream, epoch)
        for marked in list(self._marked.values()):
            is_planned = marked.stream in streams
            past = marked.stream.position - marked.epoch.start if is_planned else len(marked.epoch.order)
            for index in marked.marks.pop_before(min(past, len(marked.epoch.order))):
                if self._size_of(marked.file(index)):
                    self._place(marked.file(index))
                yield
            if not is_planned or marked.epoch not in marked.stream.epochs:
                del self._marked[marked.epoch]
                continue
            for index in marked.unscanned:
                if self._size_of(marked.file(index)):
                    self._place(marked.file(index))
                yield


def _is_never_pinned(_: int) -> bool:
    return False
