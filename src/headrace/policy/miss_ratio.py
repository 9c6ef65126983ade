"""Estimate how the miss ratio of an LRU cache depends on its size, from a sample of the files.

SHARDS with a fixed size (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015): a file is in the sample if its hash is
below a threshold, which falls as more files appear. The bytes between two reads of a file in the sample, divided by the
sampling rate, estimate the size from which on the second read is a hit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable

from headrace.base.model import FileId
from headrace.policy.id_hash import hash_of

HASHES = 1 << 64
_BINS_OF_A_DOUBLING = 32


class MissRatioCurve:
    """The curve of one stream of reads. files_max: of the sample. Its root is the accuracy: with 16,384 files a size
    is known to about 1 %. Memory is about 450 bytes for each file."""

    def __init__(self, files_max: int = 16_384) -> None:
        self.reads = 0.0
        self._files_max = files_max
        self._threshold = HASHES
        self._sample: dict[FileId, int] = {}  # file → its position in the order of last use
        self._largest: list[tuple[int, FileId]] = []  # a heap by the hash, the largest first
        self._order = _LastUses(4 * files_max)
        # distances as bins of the logarithm → reads, in units of the current sampling rate
        self._hits: dict[int, float] = {}
        self._sampled_reads = 0.0

    @property
    def rate(self) -> float:
        """Return the share of all files that the sample has."""
        return self._threshold / HASHES

    @property
    def threshold(self) -> int:
        """Return the hash from which on a file is not in the sample."""
        return self._threshold

    @property
    def unique_bytes(self) -> float:
        """Return the estimated size of all files that were read."""
        return self._order.total_bytes / self.rate

    @property
    def sampled_files(self) -> Collection[FileId]:
        """Return the files of the sample. It changes with the next read."""
        return self._sample.keys()

    def read(self, id: FileId, size_bytes: int) -> None:
        """Record a read of a file."""
        self.reads += 1
        hashed = hash_of(id)
        if hashed < self._threshold:
            self._record(id, hashed, size_bytes)

    def read_of_many(self, id: FileId, hashed: int, size_bytes: int, threshold: int) -> None:
        """Record a read. Those whose hash is not below the threshold are not recorded. The caller counts `reads`."""
        if threshold < self._threshold:
            self._lower_threshold(threshold)
        if hashed < self._threshold:
            self._record(id, hashed, size_bytes)

    def _record(self, id: FileId, hashed: int, size_bytes: int) -> None:
        self._sampled_reads += 1
        position = self._sample.get(id)
        if position is None:
            heapq.heappush(self._largest, (-hashed, id))
        else:
            distance_bytes = (self._order.bytes_after(position) + size_bytes) / self.rate
            bin = _bin_of(distance_bytes)
            self._hits[bin] = self._hits.get(bin, 0.0) + 1
            self._order.remove(position)
        if self._order.is_full:
            self._sample = self._order.compact(self._sample)
        self._sample[id] = self._order.append(size_bytes)
        if len(self._sample) > self._files_max:
            self._lower_threshold(-self._largest[0][0])

    def miss_ratio(self, capacity_bytes: float) -> float:
        """Return the estimated share of reads that an LRU cache of that size misses. 1 before the first read.

        The sample may have more or fewer reads than its share: the difference counts as reads of the shortest distance
        (SHARDS-adj).
        """
        expected = self.reads * self.rate
        if not expected:
            return 1.0
        last = _bin_of(capacity_bytes)
        hits = sum(count for bin, count in self._hits.items() if bin <= last)
        hits += expected - self._sampled_reads
        return min(1.0, max(0.0, 1 - hits / expected))

    def miss_ratios(self, capacities_bytes: Iterable[float]) -> list[float]:
        return [self.miss_ratio(capacity_bytes) for capacity_bytes in capacities_bytes]

    def _lower_threshold(self, threshold: int) -> None:
        """Remove the files from the sample whose hash is not below the threshold."""
        before, self._threshold = self._threshold, threshold
        while self._largest and -self._largest[0][0] >= self._threshold:
            _, id = heapq.heappop(self._largest)
            self._order.remove(self._sample.pop(id))
        kept = self._threshold / before
        self._sampled_reads *= kept
        for bin in self._hits:
            self._hits[bin] *= kept


def _bin_of(distance_bytes: float) -> int:
    return math.ceil(math.log2(max(1.0, distance_bytes)) * _BINS_OF_A_DOUBLING)


class _LastUses:
    """Bytes of files in the order of their last use, with sums of all that are later than one: a Fenwick tree."""

    def __init__(self, count_max: int) -> None:
        self._sizes = [0] * count_max
        self._tree = [0] * (count_max + 1)
        self._end = self._total = 0

    @property
    def total_bytes(self) -> int:
        return self._total

    @property
    def is_full(self) -> bool:
        return self._end == len(self._sizes)

    def append(self, size_bytes: int) -> int:
        """Add a file as the last one, and return its position."""
        position = self._end
        self._end += 1
        self._add(position, size_bytes)
        return position

    def remove(self, position: int) -> None:
        self._add(position, -self._sizes[position])

    def bytes_after(self, position: int) -> int:
        """Return the bytes of all files behind a position."""
        until, index = 0, position + 1
        while index:
            until += self._tree[index]
            index &= index - 1
        return self._total - until

    def compact(self, positions: dict[FileId, int]) -> dict[FileId, int]:
        """Close the gaps of removed files. Return the new positions."""
        ordered = sorted(positions.items(), key=lambda item: item[1])
        sizes = [self._sizes[position] for _, position in ordered]
        self._sizes = [0] * len(self._sizes)
        self._tree = [0] * len(self._tree)
        self._end = self._total = 0
        return {id: self.append(size_bytes) for (id, _), size_bytes in zip(ordered, sizes, strict=True)}

    def _add(self, position: int, count: int) -> None:
        self._sizes[position] += count
        self._total += count
        index = position + 1
        while index < len(self._tree):
            self._tree[index] += count
            index += index & -index
