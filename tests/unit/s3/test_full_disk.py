"""Puts on a disk that is full: the client hears so, and nothing is left."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from headrace.base.errors import NoSpaceError
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call
from headrace.vfs.streams import WriteStream
from tests.unit.s3.conftest import request_of


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
            commits=False,
        )

    def abandon(self, fd: int) -> None:
        self.abandoned += 1


@pytest.mark.parametrize("size_bytes", [1, 1 << 20])
def test_a_put_on_a_full_disk_is_no_defect(size_bytes: int) -> None:
    """Small bytes stay in a buffer until the end."""
    vfs = FullVfs()
    objects = Objects(cast(Any, vfs), reads_origin_metadata=False)
    with (
        pytest.raises(NoSpaceError),
        objects.creating(request_of("PUT /b/k"), S3Call("put_object", b"b", b"k")) as stream,
    ):
        stream.write(bytes(size_bytes))
    assert vfs.abandoned == 1
