"""Operations on files that meet a full disk, or another client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import NoSpaceError, PathNotFoundError
from headrace.http.messages import parse_head
from headrace.rest.files import FileOperations
from headrace.vfs.streams import WriteStream
from headrace.wire.api import ListQuery, PutQuery


class FullVfs:
    """Creates files on a full disk."""

    def __init__(self) -> None:
        self.abandoned = 0

    def create(self, path: bytes, **_: object) -> WriteStream:
        return WriteStream(
            os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC),
            os.fsdecode(path),
            finish=lambda _: pytest.fail("the file got its name"),
            abandon=self.abandon,
        )

    def abandon(self, fd: int) -> None:
        self.abandoned += 1


@pytest.mark.parametrize("size_bytes", [1, 1 << 20])
def test_a_put_on_a_full_disk_is_no_defect(size_bytes: int) -> None:
    vfs = FullVfs()
    request = parse_head(b"PUT /v1/content HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises(NoSpaceError):
        FileOperations(cast(Any, vfs)).write(request, PutQuery(path="/d/f"), iter([bytes(size_bytes)]))
    assert vfs.abandoned == 1


class RemovedLinks:
    """Lists links and files. The links are removed when their names have been read."""

    def __init__(self, folder: Path) -> None:
        (folder / "file").write_bytes(b"bytes")
        (folder / "link").symlink_to("file")
        self._folder = folder

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, os.stat_result]]:
        for name, kind in ((b"a", "file"), (b"b", "link"), (b"c", "file"), (b"d", "file")):
            if name > after:
                yield name, (self._folder / kind).lstat()

    def readlink(self, path: bytes) -> bytes:
        raise PathNotFoundError(os.fsdecode(path))


def test_a_link_that_is_removed_meanwhile_is_left_out(tmp_path: Path) -> None:
    operations = FileOperations(cast(Any, RemovedLinks(tmp_path)))
    first = operations.page(ListQuery(path="/d", limit=2))
    assert ([row.path for row in first.entries], first.next) == (["/d/a"], "b")
    last = operations.page(ListQuery(path="/d", limit=2, after="b"))
    assert ([row.path for row in last.entries], last.next) == (["/d/c", "/d/d"], None)
