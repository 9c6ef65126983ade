"""Provide the bytes of puts: from an open file, or from memory."""

from __future__ import annotations

import os

from headrace.base.errors import FileInUseError, StoreError
from headrace.origin.origin import Body


class FilePutSource:
    """Provides the bytes of an open file, which the kernel copies by itself into a local directory. The caller owns the
    descriptor."""

    def __init__(
        self,
        file: int,
        size_bytes: int | None = None,
        *,
        name: str = "",
        content: bytes | None = None,
        sync: bool = False,
    ) -> None:
        """Wrap a file. `size_bytes` limits it to its beginning; None takes its current size. `name` is for messages.
        `content` are its bytes if they were read already. With `sync`, the file is synced to its own disk before a
        put of it takes place."""
        self.file = file
        self.content = content
        self.size_bytes = os.fstat(file).st_size if size_bytes is None else size_bytes
        self._sync = sync
        self._name = name or f"descriptor {file}"

    def settle(self) -> None:
        """Sync the file if required. Call it before the put takes place, unless all bytes are read by `pread`. Raise
        StoreError."""
        try:
            if self._sync:
                os.fsync(self.file)
        except OSError as error:
            raise StoreError(self._name, why=os.strerror(error.errno or 0)) from error

    def pread(self, start: int, end: int) -> Body:
        """Read bytes. The last bytes are returned only after `settle`."""
        if end == self.size_bytes:
            self.settle()
        body = bytearray(end - start)
        view, offset = memoryview(body), 0
        while offset < len(body):
            try:
                count = os.preadv(self.file, [view[offset:]], start + offset)
            except OSError as error:
                raise StoreError(self._name, why=os.strerror(error.errno or 0)) from error
            if not count:
                raise self.ended(start + offset)
            offset += count
        return body

    def ended(self, offset: int) -> FileInUseError:
        """Return the error of a file that lacks bytes: a program shortened it. The kernel sets its size before its
        times, so these need not have changed yet."""
        why = f"a program shortened it to {offset} of {self.size_bytes} bytes during its upload"
        return FileInUseError(self._name, why=why)


class UnchangedFileSource(FilePutSource):
    """Provides the bytes of one state of an open file: if a program writes it meanwhile, reads and `settle` raise
    FileInUseError. ctime_ns: the file's ctime in that state; each later change sets another one."""

    def __init__(
        self,
        file: int,
        size_bytes: int,
        *,
        ctime_ns: int,
        name: str,
        content: bytes | None = None,
        sync: bool = False,
    ) -> None:
        super().__init__(file, size_bytes, name=name, content=content, sync=sync)
        self._ctime_ns = ctime_ns
        self.check()

    def check(self) -> None:
        """Raise FileInUseError if the file was written since that state. A write sets the times before the bytes."""
        if os.fstat(self.file).st_ctime_ns != self._ctime_ns:
            raise FileInUseError(self._name, why="a program wrote it during its upload")

    def settle(self) -> None:
        super().settle()
        self.check()

    def pread(self, start: int, end: int) -> Body:
        body = super().pread(start, end)
        self.check()
        return body


class BytesPutSource:
    """Provides bytes in memory."""

    def __init__(self, data: Body) -> None:
        self._data = memoryview(data)
        self.size_bytes = len(self._data)

    def pread(self, start: int, end: int) -> Body:
        return self._data[start:end]
