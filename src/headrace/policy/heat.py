"""Decide which segments of files are hot, and which nodes keep copies of them.

Each node counts what other nodes read of the segments of which it is the primary owner. A count halves with each
HALF_LIFE_S. A segment that is read more often than RAISE_READS gains holders: the nodes that read it most, which have a
copy already. They serve the other readers from then on, so that the count of the owner falls. A segment whose count
falls below KEEP_READS loses a holder. The thresholds lie far apart, so that copies don't come and go.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

HALF_LIFE_S = 300.0
RAISE_READS, TARGET_READS, KEEP_READS = 4.0, 2.0, 0.5
"""Decayed reads of a whole segment for each of its copies: from which it gains holders, how many each copy is to have
then, and below which it loses one. They are a guess: a file that four nodes read once a minute has a count of 22."""
KNOWN_MAX = 8192
"""Segments whose reads are counted, of some 500 bytes each."""
HOT_MAX = 512
"""Hot segments of one owner."""
HOLDERS_MAX = 15
READERS_MAX = 16
"""Readers of a segment that are told apart."""


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """Names a segment that a peer reads. key: of the ring. file: the owner's id of it. size_bytes: of the segment."""

    key: int
    file: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HotSegment:
    """A segment with the nodes that hold copies of it besides the owners of the ring."""

    segment: SegmentRead
    holders: tuple[str, ...]


@dataclass(slots=True)
class _Counted:
    """A segment with its reads at a moment."""

    segment: SegmentRead
    reads: float
    counted_s: float
    by_reader: dict[str, float] = field(default_factory=dict)
    holders: tuple[str, ...] = ()

    def decay(self, now_s: float) -> None:
        factor = 0.5 ** (max(0.0, now_s - self.counted_s) / HALF_LIFE_S)
        self.reads *= factor
        self.by_reader = {reader: reads * factor for reader, reads in self.by_reader.items()}
        self.counted_s = now_s

    def hold(self, holders: tuple[str, ...]) -> None:
        """Change the holders. What one copy serves changes with their number."""
        self.reads *= (1 + len(self.holders)) / (1 + len(holders))
        self.holders = holders


class ReadHeat:
    """The reads of one owner's segments. Callers pass the time, in seconds."""

    def __init__(self) -> None:
        self._counted: dict[int, _Counted] = {}
        self._candidates: set[int] = set()
        """Segments that were read since the last decision, or are hot."""

    def __len__(self) -> int:
        return len(self._counted)

    def note(self, segment: SegmentRead, reader: str, read_bytes: int, now_s: float) -> None:
        """Count a read of a part of a segment."""
        counted = self._counted.get(segment.key)
        if counted is None:
            if len(self._counted) >= KNOWN_MAX:
                self._forget_coldest(now_s)
            counted = self._counted[segment.key] = _Counted(segment, 0.0, now_s)
        counted.decay(now_s)
        counted.segment = segment
        reads = min(1.0, read_bytes / max(1, segment.size_bytes))
        counted.reads += reads
        self._candidates.add(segment.key)
        counted.by_reader[reader] = counted.by_reader.get(reader, 0.0) + reads
        if len(counted.by_reader) > READERS_MAX:
            del counted.by_reader[min(counted.by_reader, key=counted.by_reader.__getitem__)]

    def reads(self, key: int, now_s: float) -> float:
        """Return the decayed reads of a segment."""
        counted = self._counted.get(key)
        if counted is None:
            return 0.0
        counted.decay(now_s)
        return counted.reads

    def decide(self, nodes: Collection[str], *, extra_bytes_max: int, now_s: float) -> dict[int, HotSegment]:
        """Return the hot segments with their holders. nodes: that may hold copies now. extra_bytes_max: most bytes of
        all copies together."""
        hot: dict[int, HotSegment] = {}
        bytes_left = extra_bytes_max
        candidates = [self._counted[key] for key in self._candidates if key in self._counted]
        for counted in candidates:
            counted.decay(now_s)
        for counted in sorted(candidates, key=_total_reads, reverse=True):
            holders = _holders(counted, nodes)
            size_bytes = max(1, counted.segment.size_bytes)
            holders = holders[: bytes_left // size_bytes] if len(hot) < HOT_MAX else ()
            if holders != counted.holders:
                counted.hold(holders)
            if holders:
                bytes_left -= len(holders) * size_bytes
                hot[counted.segment.key] = HotSegment(counted.segment, holders)
        self._candidates = set(hot)
        return hot

    def _forget_coldest(self, now_s: float) -> None:
        """Forget a quarter of the segments; none that has holders."""
        cold = [counted for counted in self._counted.values() if not counted.holders]
        for counted in cold:
            counted.decay(now_s)
        for counted in sorted(cold, key=_total_reads)[: KNOWN_MAX // 4]:
            del self._counted[counted.segment.key]


def _total_reads(counted: _Counted) -> float:
    """Return the reads of all copies together."""
    return counted.reads * (1 + len(counted.holders))


def _holders(counted: _Counted, nodes: Collection[str]) -> tuple[str, ...]:
    """Return the holders that a segment is to have."""
    holders = tuple(id for id in counted.holders if id in nodes)
    if counted.reads < KEEP_READS:
        return holders[:-1]
    if counted.reads < RAISE_READS:
        return holders
    count = math.ceil((1 + len(holders)) * counted.reads / TARGET_READS) - 1
    readers = sorted(counted.by_reader, key=lambda id: counted.by_reader[id], reverse=True)
    more = [id for id in readers if id in nodes and id not in holders]
    return (*holders, *more)[: min(count, HOLDERS_MAX)]
