"""Sources of bytes that are put to an origin: an open file, or what is in memory anyway."""

from __future__ import annotations

import os

from headrace.base.errors import StoreError
from headrace.origin.origin import Body


class FileSource:
    """An open file, of which a local folder's kernel makes the copy by itself. The descriptor stays the caller's."""

    def __init__(
        self, file: int, size_bytes: int | None = None, *, name: str = "", content: bytes | None = None
    ) -> None:
        """size_bytes: as many from its beginning; None: all that it has now. name: for messages. content: those bytes,
        if they were read already."""
        self.file = file
        self.content = content
        self.size_bytes = os.fstat(file).st_size if size_bytes is None else size_bytes
        self._name = name or f"descriptor {file}"

    def pread(self, start: int, end: int) -> Body:
        body = bytearray(end - start)
        view, at = memoryview(body), 0
        while at < len(body):
            try:
                count = os.preadv(self.file, [view[at:]], start + at)
            except OSError as error:
                raise StoreError(self._name, why=os.strerror(error.errno or 0)) from error
            if not count:
                raise self.ended(start + at)
            at += count
        return body

    def ended(self, at: int) -> StoreError:
        return StoreError(self._name, why=f"the file to be uploaded ends at {at} of {self.size_bytes} bytes")


class BytesSource:
    """Bytes that are in memory anyway."""

    def __init__(self, data: Body) -> None:
        self._data = memoryview(data)
        self.size_bytes = len(self._data)

    def pread(self, start: int, end: int) -> Body:
        return self._data[start:end]
