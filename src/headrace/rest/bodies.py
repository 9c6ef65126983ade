"""Read the whole body of a request, within the memory that all such bodies share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import HeadraceError, UsageError
from headrace.http.admission import WHOLE_BODIES
from headrace.rest.problems import RefusedError


@contextmanager
def read_whole(pieces: Iterator[bytes], bytes_max: int) -> Iterator[bytearray]:
    """Provide the body. Raise RefusedError for one that is too long, or while too many are being read."""
    data = bytearray()
    try:
        for piece in pieces:
            if len(data) + len(piece) > bytes_max:
                raise RefusedError(413, UsageError("body", why=f"it has more than {bytes_max} bytes"))
            if not WHOLE_BODIES.reserve(len(piece)):
                raise RefusedError(
                    503, HeadraceError("body", why="too many bodies are being read", hint="try again later")
                )
            data += piece
        yield data
    finally:
        WHOLE_BODIES.release(len(data))
