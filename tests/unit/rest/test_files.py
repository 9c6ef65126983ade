"""Operations on files that meet a full disk."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from headrace.base.errors import NoSpaceError
from headrace.http.messages import parse_head
from headrace.rest.files import FileOperations
from headrace.vfs.streams import WriteStream
from headrace.wire.api import PutQuery


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
