"""Decide how far ahead of a reader to fetch, and in which order to fetch a whole file, without I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from headrace.base.model import BLOCK_SIZE_BYTES, block_range

WINDOW_START_BYTES = 8 * BLOCK_SIZE_BYTES
STREAMS_MAX = 16
WHOLE_SHARE = 4
"""A file is fetched as a whole once one part in this many was requested, in any order."""

SEGMENTS_MAX = 8
"""Most segments of a file that are fetched alternately. That many owners fill any link, and the next bytes of a
sequential reader are among them."""


def whole_order(
    size_bytes: int, from_block: int, *, range_blocks: int, segment_bytes: int
) -> Iterator[range]:
    """Yield all blocks of a file, in ranges, in the order to fetch them: from from_block to the end, then from the
    beginning.

    segment_bytes: size of the parts that have owners of their own. The order alternates between several segments, range
    by range, so that their owners send at the same time. 0: the file is one segment. No range lies in two segments.
    """
    count = block_range(0, size_bytes).stop
    segment_blocks = segment_bytes // BLOCK_SIZE_BYTES or max(1, count)
    segments = [range(start, min(count, start + segment_blocks)) for start in range(0, count, segment_blocks)]
    from_block = min(from_block, count)
    first = from_block // segment_blocks
    before = range(0)
    if first < len(segments):  # the reader's segment begins where it reads; the blocks before that come last
        before = range(segments[first].start, from_block)
        segments[first] = range(from_block, segments[first].stop)
    ordered = [*segments[first:], *segments[:first]]
    for group in range(0, len(ordered), SEGMENTS_MAX):
        turns = (_ranges(segment, range_blocks) for segment in ordered[group : group + SEGMENTS_MAX])
        for turn in zip_longest(*turns):
            yield from (blocks for blocks in turn if blocks is not None)
    yield from _ranges(before, range_blocks)


def _ranges(blocks: range, range_blocks: int) -> Iterator[range]:
    for start in range(blocks.start, blocks.stop, range_blocks):
        yield range(start, min(start + range_blocks, blocks.stop))


@dataclass(slots=True)
class _Stream:
    end: int
    window_bytes: int


class ReadAhead:
    """Follow the reads of one file. A read that begins where another ended, or at most a window further, continues that
    stream and doubles its window. The whole file is wanted after whole_file_after_bytes of streams or in one read, or
    after a quarter of the file."""

    def __init__(self, size_bytes: int, *, window_bytes_max: int, whole_file_after_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._window_bytes_max = window_bytes_max
        self._whole_after_bytes = whole_file_after_bytes
        self._streams: list[_Stream] = []
        self._run_bytes = 0
        self._requested_bytes = 0
        self.wants_whole = False

    def note(self, start: int, end: int) -> tuple[int, int]:
        """Note a read that missed. Return the range to fetch ahead of it; start == end for none."""
        self._requested_bytes += end - start
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
            or self._requested_bytes * WHOLE_SHARE >= self._size_bytes
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
