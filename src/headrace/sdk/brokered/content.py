"""The bytes of one file by the descriptors of a node of another user."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import cast

from headrace.base.errors import VersionChangedError
from headrace.base.model import FileId
from headrace.sdk.file import OpenFile
from headrace.sdk.streams import Content
from headrace.store.reader import CacheReader
from headrace.wire.broker_messages import OpenedFile
from headrace.wire.messages import Done

Ask = Callable[[int, int], tuple[OpenedFile, int]]
"""Of one file: what has these bytes, and its descriptor."""


class BrokeredReader:
    """A descriptor, and which bytes of it may be read: all, or those that were asked for. The calls of a CacheReader
    that an OpenFile makes."""

    def __init__(self, fd: int, *, complete: bool) -> None:
        self.fd = fd
        self.complete = complete
        self._ranges: list[tuple[int, int]] = []

    def present(self, start: int, end: int) -> bool:
        return self.complete or end <= start or any(s <= start and end <= e for s, e in self._ranges)

    def add(self, start: int, end: int) -> None:
        """These bytes are there, too."""
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[0] <= start <= last[1]:
            self._ranges[-1] = last[0], max(end, last[1])
        else:
            self._ranges.append((start, end))

    def is_of(self, fd: int) -> bool:
        return os.path.sameopenfile(self.fd, fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class BrokeredFile(OpenFile):
    """As an OpenFile; the node says which bytes are there, and hands out the cache file that has them."""

    def __init__(self, opened: OpenedFile, fd: int, ask: Ask) -> None:
        self._newest = BrokeredReader(fd, complete=opened.whole)
        super().__init__(
            FileId(opened.id),
            cast(CacheReader, self._newest),
            ask=lambda *_: Done(),  # the question comes with the range, below
            reopen=lambda _: None,
        )
        self._ask_for = ask

    def _follow_replacement(self, start: int, end: int) -> None:
        with self._following:
            if self.present(start, end):
                return
            opened, fd = self._ask_for(start, end)
            if opened.id != self.id:
                os.close(fd)
                raise VersionChangedError("a file that is open", why="it was replaced meanwhile")
            if opened.whole or not self._newest.is_of(fd):
                self._newest = BrokeredReader(fd, complete=opened.whole)
                self._newest.add(start, end)
                self._take(cast(CacheReader, self._newest))
            else:
                os.close(fd)
                self._newest.add(start, end)


def content_of(opened: OpenedFile, fd: int, ask: Ask) -> Content:
    if opened.whole:
        return Content(opened.size_bytes, fd=fd)
    return Content(opened.size_bytes, file=BrokeredFile(opened, fd, ask))
