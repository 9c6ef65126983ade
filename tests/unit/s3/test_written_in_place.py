"""Objects whose files a mount writes in place while they are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call
from headrace.vfs.streams import Content
from tests.unit.vfs.overwriting import start_overwriting

SIZE = 64 << 20
CALL = S3Call("get_object", b"b", b"k")
pytestmark = pytest.mark.timeout(300)


class Written:
    """Has one file of the upper layer. on_opened: called when it is open."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.on_opened: Callable[[], None] = lambda: None

    def get(self, path: bytes) -> tuple[bytes, os.stat_result]:
        return path, self.file.stat()

    def content_of(self, path: bytes, _: os.stat_result) -> Content:
        content = Content.of_upper(os.open(self.file, os.O_RDONLY | os.O_CLOEXEC), path)
        self.on_opened()
        return content


def objects_of(written: Written) -> Objects:
    return Objects(cast(Any, written), reads_origin_metadata=False)


def test_the_size_is_that_of_the_etag(tmp_path: Path) -> None:
    written = Written(tmp_path / "file")
    written.file.write_bytes(b"o" * 10)

    def grow() -> None:
        with written.file.open("ab") as out:
            out.write(b"n" * 10)

    written.on_opened = grow
    attributes, content, _ = objects_of(written).opened(CALL)
    assert content.size_bytes == attributes.size_bytes == 20
    assert content.is_versioned  # the bytes that are sent must be those of the ETag
    content.close()


def test_a_file_whose_first_byte_the_disk_cannot_read_is_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of its other bytes can be read."""

    def fail(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    written = Written(tmp_path / "file")
    written.file.write_bytes(b"o" * 10)
    written.on_opened = lambda: monkeypatch.setattr(os, "pread", fail)
    attributes, content, _ = objects_of(written).opened(CALL)
    assert attributes.size_bytes == 10
    content.close()


def test_an_etag_is_that_of_all_bytes_of_a_write(tmp_path: Path) -> None:
    """A write sets the time first and then copies its bytes (docs/decisions/0022-a-write-sets-its-time-first.md)."""
    written = Written(tmp_path / "file")
    written.file.write_bytes(b"o" * SIZE)
    objects = objects_of(written)
    writer = start_overwriting(written.file, b"n" * SIZE)
    bytes_of: dict[str, set[bytes]] = {}
    is_last = False
    while not is_last:
        is_last = not writer.is_alive()
        attributes, content, _ = objects.opened(CALL)
        last = os.pread(content.fd, 1, SIZE - 1)
        if os.fstat(content.fd).st_mtime_ns == attributes.mtime_ns:
            bytes_of.setdefault(attributes.etag, set()).add(last)
        content.close()
    assert all(len(versions) == 1 for versions in bytes_of.values()), bytes_of
    assert {b"n"} in bytes_of.values()
