"""Decode a request's body by HTTP's framing, without a socket: iterators of bytes over iterators of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.http.errors import BadRequestError, HttpFault

LINE_BYTES_MAX = 4096
CHUNK_BYTES_MAX = 1 << 30
TRAILERS_MAX = 16
PIECE_BYTES = 256 << 10
_HEX = re.compile(rb"[0-9a-fA-F]{1,16}")
_SHORT = "the body ended before its length"


class Stream:
    """Reads lines and byte counts from an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes, or b"" at the end."""
        data = self._buffer or next(self._pieces, b"")
        self._buffer = data[count:]
        return data[:count]

    def line(self) -> bytes:
        """Return the bytes up to the next CRLF, without it. Raise BadRequestError at the end and for a line that is
        too long."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            piece = next(self._pieces, b"")
            if not piece:
                raise BadRequestError(HttpFault.BODY_CUT_SHORT, _SHORT)
            self._buffer += piece
            if len(self._buffer) > LINE_BYTES_MAX + PIECE_BYTES:
                raise BadRequestError(HttpFault.NO_REQUEST, "a line of the body's framing is too long")
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def exactly(self, count: int) -> Iterator[bytes]:
        while count > 0:
            piece = self.read(min(count, PIECE_BYTES))
            if not piece:
                raise BadRequestError(HttpFault.BODY_CUT_SHORT, _SHORT)
            count -= len(piece)
            yield piece


def chunk_size(line: bytes) -> int:
    """Return the size of a chunk from its line. Raise BadRequestError."""
    size = int(line, 16) if _HEX.fullmatch(line) else -1
    if not 0 <= size <= CHUNK_BYTES_MAX:
        raise BadRequestError(HttpFault.NO_REQUEST, "a chunk of the body has no valid size")
    return size


def http_chunks(stream: Stream) -> Iterator[bytes]:
    """Yield a body with Transfer-Encoding: chunked. Trailers are skipped. Raise BadRequestError."""
    while size := chunk_size(stream.line().partition(b";")[0].strip()):
        yield from stream.exactly(size)
        if stream.line():
            raise BadRequestError(HttpFault.NO_REQUEST, "a chunk of the body is longer than its size")
    for _ in range(TRAILERS_MAX):
        if not stream.line():
            return
    raise BadRequestError(HttpFault.NO_REQUEST, "too many trailers")
