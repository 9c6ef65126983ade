"""Decide which parts of which files are a node's share of a job or a pin, by one ring, and count them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from headrace.base.model import Entry
from headrace.jobs.files import Span
from headrace.ring.ring import Ring, key_of


@dataclass(frozen=True, slots=True)
class Assignment:
    """Describes this node's share of a file. `spans` are parts of a large file; empty means all of it. `segments` are
    (key, size in bytes, is the first of the file, this node is its primary)."""

    path: bytes
    entry: Entry
    spans: tuple[Span, ...]
    segments: tuple[tuple[int, int, bool, bool], ...]


@dataclass(frozen=True, slots=True)
class RingShares:
    """Computes the shares of the node `me` by one ring, in segments of that size."""

    me: str
    ring: Ring
    segment_bytes: int

    def of(self, path: bytes, entry: Entry, replicas: int) -> Assignment | None:
        """Return the node's share of a file that `replicas` nodes own; None if it owns nothing of it."""
        size_bytes, step = entry.version.size_bytes, self.segment_bytes
        spans: list[Span] = []
        segments: list[tuple[int, int, bool, bool]] = []
        for start in range(0, max(1, size_bytes), step):
            key = key_of(path, start // step)
            owners = [member.id for member in self.ring.owners(key, replicas)]
            if self.me in owners:
                end = min(size_bytes, start + step)
                spans.append((start, end))
                segments.append((key, end - start, start == 0, owners[0] == self.me))
        if not spans:
            return None
        is_whole = sum(end - start for start, end in spans) == size_bytes
        return Assignment(path, entry, () if is_whole else tuple(spans), tuple(segments))


class SegmentCounter:
    """Counts files by the ring positions of their segments. A segment takes 17 bytes, so that millions can be counted
    again by another ring."""

    def __init__(self) -> None:
        self.files = self.bytes = 0
        self._keys = array("Q")
        self._sizes = array("Q")
        self._first = array("b")

    def add(self, key: int, size_bytes: int, *, first: bool, mine: bool) -> None:
        """Count one segment. `first`: it is the first of its file, and counts the file. `mine`: this node is its
        primary."""
        self._keys.append(key)
        self._sizes.append(size_bytes)
        self._first.append(first)
        if mine:
            self.files += first
            self.bytes += size_bytes

    def under(self, ring: Ring, me: str) -> tuple[int, int]:
        """Return the files and bytes whose primary is this node by another ring. A segment takes some 2 µs."""
        files = size_bytes = 0
        for key, size, first in zip(self._keys, self._sizes, self._first, strict=True):
            owners = ring.owners(key)
            if owners and owners[0].id == me:
                files += first
                size_bytes += size
        return files, size_bytes
