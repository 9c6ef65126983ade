"""Sources of bytes that are put to an origin: an open file, or what is in memory anyway."""

from __future__ import annotations

import os

from headrace.base.errors import StoreError
from headrace.origin.origin import Body


class FilePutSource:
    """An open file, of which a local folder's kernel makes the copy by itself. The descriptor stays the caller's."""

    def __init__(
        self,
        file: int,
        size_bytes: int | None = None,
        *,
        name: str = "",
        content: bytes | None = None,
        sync: bool = False,
    ) -> None:
        """size_bytes: as many from its beginning; None: all that it has now. name: for messages. content: those bytes,
        if they were read already. sync: its own disk has the file before a put of it takes place."""
        self.file = file
        self.content = content
        self.size_bytes = os.fstat(file).st_size if size_bytes is None else size_bytes
        self._sync = sync
        self._name = name or f"descriptor {file}"

    def settle(self) -> None:
        """To be called before the put takes place, where not all bytes are asked of `pread`. StoreError."""
        try:
            if self._sync:
                os.fsync(self.file)
        except OSError as error:
            raise StoreError(self._name, why=os.strerror(error.errno or 0)) from error

    def pread(self, start: int, end: int) -> Body:
        """The last bytes are not given away before `settle`."""
        if end == self.size_bytes:
            self.settle()
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


class BytesPutSource:
    """Bytes that are in memory anyway."""

    def __init__(self, data: Body) -> None:
        self._data = memoryview(data)
        self.size_bytes = len(self._data)

    def pread(self, start: int, end: int) -> Body:
        return self._data[start:end]
