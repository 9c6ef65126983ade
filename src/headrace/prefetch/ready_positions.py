"""Know of which positions of a reader's order the files are cached, and which reads come too late.

The cache is looked up where the fetcher passes, and for the first positions of an epoch as it begins. All else counts
as not cached. No clock and no I/O; it belongs to the node's loop.
"""

from __future__ import annotations

from collections.abc import Iterable

ABSENT_MAX = 8192
"""Most positions that are kept as not cached, without those that are being fetched."""


class ReadyPositions:
    """The positions of one stream. cursor: the fetcher has begun all before it. pending: positions before it whose
    files are being fetched."""

    def __init__(self) -> None:
        self.cursor = 0
        self.pending: set[int] = set()
        self._looked_until = 0  # the cache was looked up for all positions before it
        self._absent: set[int] = (
            set()
        )  # of these, the ones whose files were not there, and were not begun since

    def ready_until(self) -> int:
        """Return the first position whose file is not known to be cached."""
        return min(self.pending, default=self.cursor)

    def skip_to(self, position: int) -> None:
        """Begin at a position at least: nothing before it needs to be fetched any more."""
        self.cursor = max(self.cursor, position)

    def pass_one(self) -> None:
        """Go on to the next position. A file that was absent, and is there now, was read before it was fetched."""
        self.cursor += 1
        self._looked_until = max(self._looked_until, self.cursor)

    def begin(self, first: int) -> None:
        """Note that the file at the cursor is being fetched, and go on. first: a position that waits for the same fetch
        already, or the cursor: of several the first is enough."""
        self.pending.discard(first)
        self.pending.add(min(first, self.cursor))
        self._absent.discard(self.cursor)
        self.pass_one()

    def finish(self, position: int) -> None:
        """Note that the file of a position has arrived."""
        self.pending.discard(position)

    def look(self, start: int, are_cached: Iterable[bool]) -> None:
        """Note of the positions from start on, which the cursor has not passed, whether their files are cached."""
        for position, is_cached in enumerate(are_cached, start):
            self._looked_until = max(self._looked_until, position + 1)
            if not is_cached:
                self._add_absent(position)

    def go_back(self, position: int) -> bool:
        """Note that the file of a position has left the cache. Return whether the fetcher must look at it again."""
        if position < max(self.cursor, self._looked_until):
            self._add_absent(position)
        is_passed = position < self.cursor
        self.cursor = min(self.cursor, position)
        return is_passed

    def missed_samples(self, start: int, first: int, end: int, width: int) -> int:
        """Return how many samples of the positions from first to end were not cached. start: the position of any
        sample before them. width: positions a sample."""
        known_end = max(first, min(end, max(self.cursor, self._looked_until)))
        missing = {position for position in self.pending | self._absent if first <= position < known_end}
        unknown = range((known_end - start) // width, (end - start) // width)
        samples = {(position - start) // width for position in missing}
        return len(unknown) + sum(sample not in unknown for sample in samples)

    def forget_before(self, position: int) -> None:
        """Forget what was taken."""
        if self.pending:
            self.pending = {other for other in self.pending if other >= position}
        if self._absent:
            self._absent = {other for other in self._absent if other >= position}

    def _add_absent(self, position: int) -> None:
        if len(self._absent) < ABSENT_MAX:
            self._absent.add(position)
        else:
            self._looked_until = min(self._looked_until, position)
