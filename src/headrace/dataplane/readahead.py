"""How far ahead of a reader to fetch. Pure: reads in, wishes out."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.model import BLOCK_SIZE_BYTES

WINDOW_START_BYTES = 8 * BLOCK_SIZE_BYTES
STREAMS_MAX = 16
WHOLE_SHARE = 4
"""A file of which one part in this many was asked for is read in earnest, in whatever order."""


@dataclass(slots=True)
class _Stream:
    end: int
    window_bytes: int


class ReadAhead:
    """One file's reads.

    A read that begins where another ended, or at most a window further, goes on with that stream and doubles its
    window. After whole_file_after_bytes of one stream, or a quarter of the file, the whole file is wanted.
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
            self._run_bytes >= self._whole_after_bytes or self._asked_bytes * WHOLE_SHARE >= self._size_bytes
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
