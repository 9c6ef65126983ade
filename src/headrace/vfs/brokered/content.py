"""Read one file through descriptors of a node of another user."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.base.errors import VersionChangedError
from headrace.base.model import FileId
from headrace.client.file import OpenFile
from headrace.vfs.streams import Content
from headrace.wire.broker_messages import OpenedFile
from headrace.wire.messages import Done

Ask = Callable[[int, int], tuple[OpenedFile, int]]
"""Requests a range of one file. Returns the cache file that has these bytes, and its descriptor."""


class BrokeredReader:
    """Holds a descriptor, and which of its bytes may be read: all, or the requested ones. It has the methods of a
    CacheReader that an OpenFile calls."""

    def __init__(self, fd: int, *, complete: bool) -> None:
        self.fd = fd
        self.complete = complete
        self._ranges: list[tuple[int, int]] = []

    def present(self, start: int, end: int) -> bool:
        return self.complete or end <= start or any(s <= start and end <= e for s, e in self._ranges)

    def add(self, start: int, end: int) -> None:
        """Record that these bytes are available, too."""
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
    """Reads a file as an OpenFile does. The node reports which bytes are available, and passes the cache file that
    has them."""

    def __init__(self, opened: OpenedFile, fd: int, ask: Ask) -> None:
        self._newest = BrokeredReader(fd, complete=opened.whole)
        super().__init__(
            FileId(opened.id),
            self._newest,
            ask=lambda *_: Done(),  # `_follow_replacement` sends the request, with its range
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
                raise VersionChangedError("a file that is open", why="it was replaced after it was opened")
            if opened.whole or not self._newest.is_of(fd):
                self._newest = BrokeredReader(fd, complete=opened.whole)
                self._newest.add(start, end)
                self._add_reader(self._newest)
            else:
                os.close(fd)
                self._newest.add(start, end)


def content_of(opened: OpenedFile, fd: int, ask: Ask) -> Content:
    if opened.whole:
        return Content(opened.size_bytes, fd=fd)
    return Content(opened.size_bytes, file=BrokeredFile(opened, fd, ask))
