"""Operations on files that meet a full disk, or another client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import NoSpaceError, PathNotFoundError, VersionChangedError
from headrace.http.messages import parse_head
from headrace.overlay.syscalls import tick_left_s
from headrace.rest.files import FileOperations
from headrace.testing.waiting import wait_for
from headrace.vfs.streams import Content
from headrace.wire.api import SUMS_HEADER, SUMS_WORD, ListQuery, PutQuery
from tests.unit.vfs.full_disk import FullVfs
from tests.unit.vfs.overwriting import start_overwriting


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


# ------------------------------------------------------------ files that are written in place

BLOCK = 1 << 20


class Written:
    """Has one file of the upper layer. on_read: called before bytes of it are read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.on_read: Callable[[], None] = lambda: None
        self.client = None

    def get(self, path: bytes) -> tuple[bytes, os.stat_result]:
        return path, self.file.stat()

    def content_of(self, path: bytes, _: os.stat_result) -> Content:
        content = WatchedContent.of_upper(os.open(self.file, os.O_RDONLY | os.O_CLOEXEC), path)
        assert isinstance(content, WatchedContent)
        content.on_read = lambda: self.on_read()
        return content

    def request(self, start: int, end: int, etag: str = "") -> tuple[str, bytes]:
        """Return the ETag and the bytes that a host without a node gets."""
        condition = f"If-Match: {etag}\r\n" if etag else ""
        head = f"GET /v1/content HTTP/1.1\r\nHost: h\r\nRange: bytes={start}-{end - 1}\r\n{condition}"
        head += f"{SUMS_HEADER}: {SUMS_WORD}\r\n\r\n"
        response = FileOperations(cast(Any, self)).read(parse_head(head.encode()), "/f")
        return dict(response.headers)["ETag"], response.body


class WatchedContent(Content):
    on_read: Callable[[], None]

    def read(self, start: int, end: int) -> bytes:
        self.on_read()
        return super().read(start, end)


def test_a_part_of_a_version_has_no_bytes_of_a_later_one(tmp_path: Path) -> None:
    """The last part would end the file with them, and no later part would show it."""
    written = Written(tmp_path / "file")
    written.file.write_bytes(b"o" * 2 * BLOCK)
    etag, first = written.request(0, BLOCK)
    assert first == b"o" * BLOCK
    assert written.request(BLOCK, 2 * BLOCK, etag) == (etag, first)

    def overwrite() -> None:
        wait_for(
            lambda: not tick_left_s(written.file.stat())
        )  # older kernels give both the same time otherwise
        with written.file.open("r+b") as out:
            out.write(b"n" * 2 * BLOCK)

    written.on_read = overwrite
    with pytest.raises(VersionChangedError):
        written.request(BLOCK, 2 * BLOCK, etag)
    written.file.write_bytes(b"o" * 2 * BLOCK)
    etag, data = written.request(0, BLOCK)
    assert data == b"n" * BLOCK, "a request for no version gets what there is"
    with pytest.raises(VersionChangedError):
        written.request(BLOCK, 2 * BLOCK, etag)


def test_the_size_is_that_of_the_version(tmp_path: Path) -> None:
    """A file that grows between its open and its description had the size before, under the later version."""
    written = Written(tmp_path / "file")
    written.file.write_bytes(b"o" * 10)
    content = written.content_of(b"/f", written.file.stat())
    with written.file.open("ab") as out:
        out.write(b"n" * 10)
    written.content_of = lambda *_: content  # type: ignore[method-assign]
    assert written.request(0, 100)[1] == b"o" * 10 + b"n" * 10


def test_a_version_has_all_bytes_of_the_write_that_made_it(tmp_path: Path) -> None:
    """A write sets the time first and then copies its bytes (docs/decisions/0022-a-write-sets-its-time-first.md)."""
    size = 64 * BLOCK
    written = Written(tmp_path / "file")
    written.file.write_bytes(b"o" * size)
    writer = start_overwriting(written.file, b"n" * size)
    bytes_of: dict[str, set[bytes]] = {}
    while True:
        is_last = not writer.is_alive()
        etag, _ = written.request(0, 1)
        with contextlib.suppress(VersionChangedError):
            last = written.request(size - 1, size, etag)[1]
            bytes_of.setdefault(etag, set()).add(last)
        if is_last:
            break
    assert all(len(versions) == 1 for versions in bytes_of.values()), bytes_of
    assert written.request(size - 1, size)[1] == b"n"
