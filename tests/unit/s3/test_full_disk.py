"""Puts on a disk that is full: the client hears so, and nothing is left."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.base.errors import NoSpaceError
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call
from tests.unit.s3.conftest import request_of
from tests.unit.vfs.full_disk import FullVfs


@pytest.mark.parametrize("size_bytes", [1, 1 << 20])
def test_a_put_on_a_full_disk_is_no_defect(size_bytes: int) -> None:
    """Small bytes stay in a buffer until the end."""
    vfs = FullVfs(commits=False)
    objects = Objects(cast(Any, vfs), reads_origin_metadata=False)
    with (
        pytest.raises(NoSpaceError),
        objects.creating(request_of("PUT /b/k"), S3Call("put_object", b"b", b"k")) as stream,
    ):
        stream.write(bytes(size_bytes))
    assert vfs.abandoned == 1
