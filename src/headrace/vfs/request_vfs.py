"""Define the common part of `RemoteVfs` and `BrokeredVfs`: each of their reads is a request to a node."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable

from headrace.base.errors import NotADirectoryPathError, VersionChangedError
from headrace.client.node_client import CHANGED_ATTEMPTS
from headrace.overlay.merged_view import FileStat
from headrace.vfs.streams import Content, ReadStream


class RequestVfs(ABC):
    """Implements calls of `Vfs` by others that send requests."""

    @property
    def generation(self) -> int:
        return 0

    @abstractmethod
    def find(self, path: bytes, *, follow: bool = True) -> tuple[bytes, FileStat | None]: ...

    def exists(self, path: bytes) -> bool:
        try:
            return self.find(path)[1] is not None
        except NotADirectoryPathError:
            return False

    @abstractmethod
    def content(self, path: bytes) -> Content: ...

    def content_if_cached(self, path: bytes) -> Content | None:
        """Return None: no implementation can determine whether a file is cached without fetching it."""
        return None

    def open(self, path: bytes) -> ReadStream:
        return ReadStream(self.content(path), os.fsdecode(path))

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        return of_one_version(lambda: self._read(path, start, end))

    def _read(self, path: bytes, start: int, end: int | None) -> bytes:
        """Return bytes start to end. Raise VersionChangedError when the file is replaced meanwhile."""
        content = self.content(path)
        try:
            return content.read(start, content.size_bytes if end is None else end)
        finally:
            content.close()


def of_one_version(read: Callable[[], bytes]) -> bytes:
    """Return the result of a read. Repeat it some times while the file is replaced."""
    for attempt in range(CHANGED_ATTEMPTS):
        try:
            return read()
        except VersionChangedError:
            if attempt + 1 == CHANGED_ATTEMPTS:
                raise
    raise AssertionError
