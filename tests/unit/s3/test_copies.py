"""Copies of objects whose source a mount changes in place meanwhile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.model import ObjectMetadata
from headrace.http.messages import Request
from headrace.s3.checksums import FULL_OBJECT, Checksum
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import ObjectAttributes, attributes_of, write_record
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call
from headrace.vfs.streams import Content
from tests.unit.s3.conftest import request_of

OLD, NEW = b"old bytes", b"new bytes"
PUT_S = "1700000000"
CHECKSUM = Checksum("crc32", "AAAAAA==", FULL_OBJECT)


class FakeMetadata:
    """Keeps what it gets."""

    def check_kept(self, _: bytes, metadata: ObjectMetadata) -> ObjectMetadata:
        return metadata


class OneObject(Objects):
    """Has one object, a file of the upper layer that the gateway put. `changed` is written to it in place when the
    copy begins."""

    def __init__(self, folder: Path, changed: bytes | None) -> None:
        super().__init__(cast(Any, None), reads_origin_metadata=False)
        self.metadata = cast(Any, FakeMetadata())
        self.source, self.target = folder / "source", folder / "target"
        self.source.write_bytes(OLD)
        self._changed = changed
        with open(self.source, "r+b") as file:
            write_record(file.fileno(), hashlib.md5(OLD).hexdigest(), PUT_S, checksum=CHECKSUM)

    def check_bucket(self, call: S3Call) -> None:
        pass

    def opened(
        self, call: S3Call, request: Request | None = None
    ) -> tuple[ObjectAttributes, Content, ObjectMetadata | None]:
        fd = os.open(self.source, os.O_RDONLY)
        return attributes_of(os.fstat(fd), fd), Content.of_upper(fd, b"/b/source"), ObjectMetadata()

    @contextmanager
    def creating(self, request: Request, call: S3Call) -> Iterator[Any]:
        if self._changed is not None:
            with open(self.source, "r+b") as file:
                file.truncate(len(self._changed))
                file.write(self._changed)
        with open(self.target, "w+b", buffering=0) as stream:
            yield stream

    def copied(self, **headers: str) -> ObjectAttributes:
        request = request_of("PUT /b/target", x_amz_copy_source="b/source", **headers)
        self.copy(request, S3Call("copy_object", b"b", b"target"))
        fd = os.open(self.target, os.O_RDONLY)
        try:
            return attributes_of(os.fstat(fd), fd)
        finally:
            os.close(fd)


def test_a_copy_keeps_the_attributes_of_its_source(tmp_path: Path) -> None:
    objects = OneObject(tmp_path, None)
    copied = objects.copied()
    assert objects.target.read_bytes() == OLD
    assert copied.etag == f'"{hashlib.md5(OLD).hexdigest()}"'
    assert (copied.mtime_text, copied.checksum) == (PUT_S, CHECKSUM)


@pytest.mark.parametrize("changed", [NEW, NEW + b" and more", b"n"])
def test_the_etag_of_a_copy_is_none_of_other_bytes(changed: bytes, tmp_path: Path) -> None:
    objects = OneObject(tmp_path, changed)
    copied = objects.copied()
    assert objects.target.read_bytes() == changed[: len(OLD)]
    assert "-" in copied.etag, "no client takes it for an MD5"
    assert (copied.mtime_text, copied.checksum) == ("", None)


def test_a_version_that_was_changed_meanwhile_is_not_copied(tmp_path: Path) -> None:
    etag = hashlib.md5(OLD).hexdigest()
    assert OneObject(tmp_path, None).copied(x_amz_copy_source_if_match=etag).etag == f'"{etag}"'
    with pytest.raises(S3Error) as raised:
        OneObject(tmp_path, NEW).copied(x_amz_copy_source_if_match=etag)
    assert raised.value.code == "PreconditionFailed"
