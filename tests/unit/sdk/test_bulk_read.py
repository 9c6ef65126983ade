"""Reads of many files of which the disk can't read some: an error of those, and of no other."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import StoreError
from headrace.sdk.bulk_read import ThreadedBulkReader
from headrace.sdk.local_bulk_read import LocalBulkReader
from headrace.vfs.streams import Content

pytestmark = pytest.mark.timeout(60)
PATHS = [f"/{number}" for number in range(100)]
BAD = {"/0", "/7", "/50", "/99"}


class DiskContent(Content):
    """The content of a file whose sectors may be bad, in memory or not."""

    def __init__(self, file: Path, *, is_bad: bool, in_memory: bool) -> None:
        super().__init__(file.stat().st_size, fd=os.open(file, os.O_RDONLY))
        self._is_bad, self._in_memory = is_bad, in_memory

    def is_in_memory(self) -> bool:
        return self._in_memory

    def read(self, start: int, end: int) -> bytes:
        if self._is_bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(start, end)


class DiskVfs:
    def __init__(self, file: Path, *, in_memory: bool) -> None:
        self._file, self._in_memory = file, in_memory
        self.opened: list[Content] = []

    def content_or_entry(self, path: bytes) -> Content:
        content = DiskContent(self._file, is_bad=os.fsdecode(path) in BAD, in_memory=self._in_memory)
        self.opened.append(content)
        return content

    def read(self, path: bytes, start: int, end: int | None) -> bytes:
        content = self.content_or_entry(path)
        try:
            return content.read(start, content.size_bytes if end is None else end)
        finally:
            content.close()


@pytest.fixture(params=["in memory", "on disk"])
def vfs(request: pytest.FixtureRequest, tmp_path: Path) -> DiskVfs:
    (tmp_path / "file").write_bytes(b"the bytes")
    return DiskVfs(tmp_path / "file", in_memory=request.param == "in memory")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", [LocalBulkReader, ThreadedBulkReader])
def test_an_error_of_the_disk_is_that_of_its_file(vfs: DiskVfs, kind: Any, ordered: bool) -> None:
    reader = kind(cast(Any, vfs))
    results = list(reader.read(PATHS, ordered=ordered, on_error="return"))
    assert sorted(result.path for result in results) == sorted(PATHS)
    for result in results:
        assert result.path == PATHS[result.number]
        if result.path in BAD:
            assert isinstance(result.error, StoreError)
            assert (result.error.what, result.data) == (result.path, b"")
        else:
            assert (result.error, result.data) == (None, b"the bytes")
    with pytest.raises(StoreError, match="/0: input/output error"):
        list(reader.read(PATHS, ordered=True, on_error="raise"))
    reader.close()
    assert {content.fd for content in vfs.opened} == {-1}, "all are closed"
