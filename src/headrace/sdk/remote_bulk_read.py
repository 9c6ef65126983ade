"""Read many files of other hosts. After an error or Ctrl-C the requests in progress end: one may wait for a slow
origin, and a large file takes thousands of them."""

from __future__ import annotations

from typing import cast

from headrace.vfs.remote.remote_vfs import RemoteVfs, read_version
from headrace.vfs.remote.request_group import RequestGroup
from headrace.vfs.request_vfs import of_one_version
from headrace.vfs.vfs import Vfs


class RemoteReads:
    """Makes the reads of one `read_many`. vfs: a RemoteVfs."""

    def __init__(self, vfs: Vfs) -> None:
        self._nodes = cast(RemoteVfs, vfs).nodes
        self._group = RequestGroup()

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        return of_one_version(lambda: read_version(self._nodes, path, start, end, group=self._group))

    def end(self) -> None:
        self._group.end()
