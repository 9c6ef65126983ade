"""Uploads in parts on a disk that becomes full: a part is stored completely, or refused."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import StoreError
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3.body import Payload
from headrace.s3.multipart import Multipart
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.routes import S3Call
from headrace.s3.uploads import About, Uploads
from tests.unit.s3.conftest import request_of

PIECE = bytes(range(256)) * 4096
LIMIT_BYTES = len(PIECE) * 3 // 2


@contextmanager
def short_disk() -> Iterator[None]:
    """Files of this process end within their second piece, as on a full disk: a write that begins before the limit
    writes a part of its bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class FakeObjects:
    """Has one object, which is twice PIECE. Reads return a piece at most."""

    def opened(self, call: S3Call) -> tuple[ObjectAttributes, FakeObjects, None]:
        return ObjectAttributes(2 * len(PIECE), 0, '"e"'), self, None

    def read(self, start: int, end: int) -> bytes:
        return (PIECE * 2)[start:end]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("source", ["body", "copy"])
def test_a_part_that_the_disk_cannot_hold_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.s3.multipart._COPY_STEP_BYTES", len(PIECE))
    folder = os.fsencode(tmp_path / "uploads")
    uploads = Uploads(folder, DurableWrites(os.fsencode(tmp_path), lambda: False))
    id = uploads.begin(About(b"b", b"k", 0.0))
    multipart = Multipart(cast(Any, FakeObjects()), uploads)
    call = S3Call("put_part", b"b", b"k")

    def put(number: int) -> None:
        line = f"PUT /b/k?partNumber={number}&uploadId={id}"
        if source == "copy":
            multipart.copy_part(request_of(line, x_amz_copy_source="b/k"), call)
        else:
            request = request_of(line)
            multipart.put_part(request, call, Payload(request, iter([PIECE, PIECE]), "", None))

    put(1)
    with short_disk(), pytest.raises(StoreError):
        put(2)
    assert [(part.number, part.size_bytes) for part in uploads.parts(id)] == [(1, 2 * len(PIECE))]
    assert Path(os.fsdecode(folder), id, "00001").read_bytes() == PIECE * 2
