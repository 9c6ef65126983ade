"""How far ahead of a reader to fetch, and in which order a whole file. Pure: reads in, wishes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from headrace.base.model import BLOCK_SIZE_BYTES, block_range

WINDOW_START_BYTES = 8 * BLOCK_SIZE_BYTES
STREAMS_MAX = 16
WHOLE_SHARE = 4
"""A file of which one part in this many was asked for is read in earnest, in whatever order."""

LANES_MAX = 8
"""So many segments of a file are fetched side by side: more owners than that fill any link, and a reader that goes
through the file in order has what comes next among them."""


def whole_order(size_bytes: int, from_block: int, *, range_blocks: int, lane_bytes: int) -> Iterator[range]:
    """All blocks of a file, in ranges, in the order to fetch them: from from_block to the end, then from the beginning.

    lane_bytes: parts of this size have owners of their own; then several of them take turns, a range each, so that all
    owners send at one time. 0: there is one. No range lies in two parts.
    """
    count = block_range(0, size_bytes).stop
    lane_blocks = lane_bytes // BLOCK_SIZE_BYTES or max(1, count)
    lanes = [range(start, min(count, start + lane_blocks)) for start in range(0, count, lane_blocks)]
    from_block = min(from_block, count)
    first = from_block // lane_blocks
    before = range(0)
    if first < len(lanes):  # the reader's lane is begun where it reads, and what is before that comes last
        before = range(lanes[first].start, from_block)
        lanes[first] = range(from_block, lanes[first].stop)
    ordered = [*lanes[first:], *lanes[:first]]
    for place in range(0, len(ordered), LANES_MAX):
        for turn in zip_longest(
            *(_ranges(lane, range_blocks) for lane in ordered[place : place + LANES_MAX])
        ):
            yield from (one for one in turn if one is not None)
    yield from _ranges(before, range_blocks)


def _ranges(blocks: range, range_blocks: int) -> Iterator[range]:
    for start in range(blocks.start, blocks.stop, range_blocks):
        yield range(start, min(start + range_blocks, blocks.stop))


@dataclass(slots=True)
class _Stream:
    end: int
    window_bytes: int


class ReadAhead:
    """One file's reads.

    A read that begins where another ended, or at most a window further, goes on with that stream and doubles its
    window. After whole_file_after_bytes of streams or in one read, or a quarter of the file, the whole file is
    wanted.
    """

    def __init__(self, size_bytes: int, *, window_bytes_max: int, whole_file_after_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._window_bytes_max = window_bytes_max
        self._whole_after_bytes = whole_file_after_bytes
        self._streams: list[_Stream] = []
        self._run_bytes = 0
        self._asked_bytes = 0
        self.wants_whole = False

    def asked(self, start: int, end: int) -> tuple[int, int]:
        """Notes a read that missed; what to fetch ahead of it, possibly nothing (then start == end)."""
        self._asked_bytes += end - start
        stream = self._stream_at(start)
        if stream is None:
            self._streams = [
                *self._streams[-STREAMS_MAX + 1 :],
                _Stream(end, 0 if start else WINDOW_START_BYTES),
            ]
            ahead = self._streams[-1].window_bytes
        else:
            self._run_bytes += max(0, end - stream.end)
            stream.end = max(stream.end, end)
            stream.window_bytes = min(
                self._window_bytes_max, max(WINDOW_START_BYTES, 2 * stream.window_bytes)
            )
            ahead = stream.window_bytes
        self.wants_whole = self.wants_whole or (
            max(self._run_bytes, end - start) >= self._whole_after_bytes
            or self._asked_bytes * WHOLE_SHARE >= self._size_bytes
        )
        return end, min(self._size_bytes, end + ahead)

    def _stream_at(self, start: int) -> _Stream | None:
        for stream in reversed(self._streams):
            if (
                stream.end - BLOCK_SIZE_BYTES
                <= start
                <= stream.end + max(BLOCK_SIZE_BYTES, stream.window_bytes)
            ):
                return stream
        return None
