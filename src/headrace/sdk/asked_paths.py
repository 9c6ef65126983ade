"""A namespace of which nothing is read without a question: of another user's node here, or of nodes elsewhere."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator

from headrace.base.errors import NotADirectoryPathError, VersionChangedError
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.node_client import CHANGED_ATTEMPTS
from headrace.sdk.streams import Content, ReadStream
from headrace.wire.messages import JobStart, JobState


class AskedPaths(ABC):
    """The calls of a `LocalVfs` that programs make, as far as all who are asked answer them alike."""

    @property
    def client(self) -> AskedPaths:
        """What fsspec's file system asks of a client: whether it is closed, and which index it reads."""
        return self

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @property
    def generation(self) -> int:
        return 0

    @abstractmethod
    def close(self) -> None: ...

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
        """Whether it is, none of them says without sending it."""
        return None

    def open(self, path: bytes) -> ReadStream:
        return ReadStream(self.content(path), os.fsdecode(path))

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        """Of one version, whatever happens to the file meanwhile."""
        for attempt in range(CHANGED_ATTEMPTS):
            try:
                return self._read(path, start, end)
            except VersionChangedError:
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
        raise AssertionError

    @abstractmethod
    def _read(self, path: bytes, start: int, end: int | None) -> bytes:
        """VersionChangedError."""

    @abstractmethod
    def status(self) -> dict[str, object]: ...

    @abstractmethod
    def run_job(self, start: JobStart) -> Iterator[JobState]: ...
