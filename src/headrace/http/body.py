"""Delimit and decode a request's body by HTTP's framing, without a socket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.http.errors import BadRequestError, HttpFault
from headrace.http.messages import HEAD_END, Request, is_number

LINE_BYTES_MAX = 4096
"""Longest line of a chunked body's framing."""
CHUNK_BYTES_MAX = 1 << 30
TRAILERS_MAX = 16
PIECE_BYTES = 256 << 10
GATHER_BYTES = 64 << 10
"""Bytes of a body that have arrived before a thread serves the request; a shorter body is complete then."""
_HEX = re.compile(rb"[0-9a-fA-F]{1,16}")
_SHORT = "the body ended before its length"


@dataclass(slots=True)
class BodyFraming:
    """Describes the body of the last request, and the part of it that was not read yet.

    left_bytes: unread bytes; 0 for a chunked body. owes_continue: the client waits for "100 Continue". is_reusable:
    another request may follow on the connection. is_plain: that is so, and the request has no body.
    """

    left_bytes: int = 0
    is_chunked: bool = False
    owes_continue: bool = False
    is_reusable: bool = True
    is_plain: bool = False

    @property
    def has_body(self) -> bool:
        return self.left_bytes > 0 or self.is_chunked or self.owes_continue

    def is_whole(self, buffer: bytearray) -> bool:
        """Return whether the complete body has arrived."""
        return not self.is_chunked and not self.owes_continue and self.left_bytes <= len(buffer)

    def needs_more(self, buffer: bytearray) -> bool:
        """Return whether more bytes must arrive before a thread serves the request."""
        if self.owes_continue:
            return False
        if self.is_chunked:  # every chunked body ends like this
            return len(buffer) < GATHER_BYTES and not buffer.endswith(HEAD_END)
        return len(buffer) < min(self.left_bytes, GATHER_BYTES)


def framing_of(request: Request) -> BodyFraming:
    """Return the framing that the head declares. Raise BadRequestError."""
    headers = request.headers
    length = headers.get("content-length", "0")
    if not is_number(length):
        raise BadRequestError(HttpFault.NO_REQUEST, "Content-Length is not a number")
    is_chunked = "transfer-encoding" in headers
    if is_chunked and (headers["transfer-encoding"].lower() != "chunked" or "content-length" in headers):
        raise BadRequestError(
            HttpFault.NO_REQUEST, "Transfer-Encoding must be chunked, without a Content-Length"
        )
    owes_continue = headers.get("expect", "").lower() == "100-continue"
    is_reusable = request.keep_alive and not is_chunked  # bytes after the last chunk are not kept apart
    left_bytes = int(length)
    is_plain = is_reusable and not (left_bytes or owes_continue)
    return BodyFraming(left_bytes, is_chunked, owes_continue, is_reusable, is_plain)


class Stream:
    """Reads lines and byte counts from an iterator of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer = b""
        self._offset = (
            0  # what was read stays before it: to move the rest for each small chunk took most of the time
        )

    def read(self, count: int) -> bytes:
        """Return at most `count` bytes, or b"" at the end."""
        if self._offset == len(self._buffer):
            self._buffer, self._offset = next(self._pieces, b""), 0
        data = self._buffer[self._offset : self._offset + count]
        self._offset += len(data)
        return data

    def line(self) -> bytes:
        """Return the bytes up to the next CRLF, without it. Raise BadRequestError at the end and for a line that is
        too long."""
        while (end := self._buffer.find(b"\r\n", self._offset)) < 0:
            piece = next(self._pieces, b"")
            if not piece:
                raise BadRequestError(HttpFault.BODY_CUT_SHORT, _SHORT)
            self._buffer, self._offset = self._buffer[self._offset :] + piece, 0
            if len(self._buffer) > LINE_BYTES_MAX + PIECE_BYTES:
                raise BadRequestError(HttpFault.NO_REQUEST, "a line of the body's framing is too long")
        line, self._offset = self._buffer[self._offset : end], end + 2
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
