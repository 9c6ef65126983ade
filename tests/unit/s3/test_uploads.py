"""Uploads in parts: on a disk that becomes full a part is stored completely, or refused, and a completion joins the
parts that it checked."""

from __future__ import annotations

import hashlib
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import StoreError
from headrace.http.messages import Request
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3.body import Payload
from headrace.s3.errors import S3Error
from headrace.s3.multipart import Multipart
from headrace.s3.object_attributes import ObjectAttributes, attributes_of, synthetic_etag
from headrace.s3.objects import no_such_key
from headrace.s3.routes import S3Call
from headrace.s3.uploads import About, Uploads
from headrace.vfs.streams import Content
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
    """Has one object, which is twice PIECE, and may be shorter by now. An object is created in `created`, after
    `before` was called. Reads return a piece at most."""

    may_change = False

    def __init__(self, created: Path | None = None, before: Callable[[], object] = lambda: None) -> None:
        self._created = created
        self._before = before
        self.size_bytes = 2 * len(PIECE)

    @contextmanager
    def creating(self, request: Request, call: S3Call) -> Iterator[Any]:
        self._before()
        assert self._created is not None
        staged = self._created.with_name("staged")
        with open(staged, "w+b", buffering=0) as stream:
            yield stream
        staged.rename(self._created)

    def attributes(self, call: S3Call) -> tuple[ObjectAttributes, None, bytes]:
        assert self._created is not None
        if not self._created.exists():
            raise no_such_key()
        with open(self._created, "rb") as file:
            return attributes_of(os.fstat(file.fileno()), file.fileno()), None, b""

    def opened(self, call: S3Call) -> tuple[ObjectAttributes, FakeObjects, None]:
        return ObjectAttributes(2 * len(PIECE), 0, '"e"'), self, None

    def read(self, start: int, end: int) -> bytes:
        return (PIECE * 2)[start : min(end, self.size_bytes)]

    def check_bucket(self, call: S3Call) -> None:
        pass

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


class Upload:
    """One upload of the key k, whose parts are put and completed."""

    def __init__(self, folder: Path) -> None:
        self.uploads = Uploads(
            os.fsencode(folder / "uploads"), DurableWrites(os.fsencode(folder), lambda: False)
        )
        self.id = self.uploads.begin(About(b"b", b"k", 0.0))
        self.call = S3Call("put_part", b"b", b"k")

    def put(self, number: int, data: bytes) -> str:
        request = request_of(f"PUT /b/k?partNumber={number}&uploadId={self.id}")
        parts = Multipart(cast(Any, FakeObjects()), self.uploads)
        parts.put_part(request, self.call, Payload(request, iter([data]), "", None))
        return hashlib.md5(data).hexdigest()

    def complete(self, objects: FakeObjects, *etags: str) -> bytes:
        """Complete the upload, and return the body of the response."""
        rows = (
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>"
        request = request_of(f"POST /b/k?uploadId={self.id}")
        return Multipart(cast(Any, objects), self.uploads).complete(request, self.call, body.encode()).body


def test_a_completion_whose_answer_was_lost_gets_it_again(tmp_path: Path) -> None:
    upload, objects = Upload(tmp_path), FakeObjects(tmp_path / "created")
    etag = upload.put(1, b"bytes")
    first = upload.complete(objects, etag)
    assert upload.complete(objects, etag) == first
    for etags in ((etag, etag), (hashlib.md5(b"other bytes").hexdigest(),), ("no MD5",)):
        with pytest.raises(S3Error) as raised:
            upload.complete(objects, *etags)
        assert raised.value.code == "NoSuchUpload"
    (tmp_path / "created").unlink()
    with pytest.raises(S3Error) as raised:
        upload.complete(objects, etag)
    assert raised.value.code == "NoSuchUpload"


def test_a_completion_that_another_one_overtakes_gets_the_same_answer(tmp_path: Path) -> None:
    """The client sent it again while the parts were joined."""
    upload, created = Upload(tmp_path), tmp_path / "created"
    etag = upload.put(1, b"bytes")
    first: list[bytes] = []
    objects = FakeObjects(created, before=lambda: first.append(upload.complete(FakeObjects(created), etag)))
    assert upload.complete(objects, etag) == first[0]
    assert created.read_bytes() == b"bytes"


@pytest.mark.parametrize("second", [b"new bytes", b"old bytes"])
def test_a_completion_joins_the_parts_that_it_checked(second: bytes, tmp_path: Path) -> None:
    """A part is put again while a completion runs. Bytes of another ETag would get the ETag of the first ones."""
    upload, created = Upload(tmp_path), tmp_path / "created"
    etag = upload.put(1, b"old bytes")
    objects = FakeObjects(created, before=lambda: upload.put(1, second))
    if second == b"old bytes":  # a late repetition of the same request
        upload.complete(objects, etag)
        assert created.read_bytes() == b"old bytes"
        assert upload.uploads.parts(upload.id) == []
        return
    with pytest.raises(S3Error) as raised:
        upload.complete(objects, etag)
    assert raised.value.code == "InvalidPart"
    assert not created.exists()
    assert [part.size_bytes for part in upload.uploads.parts(upload.id)] == [len(second)]


def test_a_part_of_a_source_that_became_shorter_is_refused(tmp_path: Path) -> None:
    upload, objects = Upload(tmp_path), FakeObjects()
    objects.size_bytes -= 1
    request = request_of(f"PUT /b/k?partNumber=1&uploadId={upload.id}", x_amz_copy_source="b/k")
    with pytest.raises(S3Error) as raised:
        Multipart(cast(Any, objects), upload.uploads).copy_part(request, upload.call)
    assert raised.value.code == "ServiceUnavailable"
    assert upload.uploads.parts(upload.id) == []


class ChangedSource(FakeObjects):
    """Has one object that a program writes in place after it was opened."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def opened(self, call: S3Call) -> tuple[ObjectAttributes, Any, None]:
        fd = os.open(self._file, os.O_RDONLY)
        attributes = attributes_of(os.fstat(fd), fd)
        self._file.write_bytes(b"new bytes, and more")
        return attributes, Content.of_upper(fd, b"/b/source"), None


def test_a_part_of_a_version_that_was_changed_meanwhile_is_not_copied(tmp_path: Path) -> None:
    upload, source = Upload(tmp_path), tmp_path / "source"

    def copy(**conditions: str) -> None:
        line = f"PUT /b/k?partNumber=1&uploadId={upload.id}"
        request = request_of(line, x_amz_copy_source="b/source", **conditions)
        Multipart(cast(Any, ChangedSource(source)), upload.uploads).copy_part(request, upload.call)

    source.write_bytes(b"old bytes")
    status = source.stat()
    with pytest.raises(S3Error) as raised:
        copy(x_amz_copy_source_if_match=synthetic_etag(status.st_size, status.st_mtime_ns))
    assert raised.value.code == "PreconditionFailed" and upload.uploads.parts(upload.id) == []
    copy()
    (part,) = upload.uploads.parts(upload.id)
    assert part.etag == hashlib.md5(b"new bytes, and more").hexdigest()


def test_all_uploads_are_listed_although_those_of_a_page_are_aborted(tmp_path: Path) -> None:
    """Programs abort uploads page by page. The markers then name an upload that has ended."""
    uploads = Uploads(os.fsencode(tmp_path / "uploads"), DurableWrites(os.fsencode(tmp_path), lambda: False))
    parts, call = Multipart(cast(Any, FakeObjects()), uploads), S3Call("list_uploads", b"b", b"")
    begun = [uploads.begin(About(b"b", key, 0.0)) for key in (b"j", b"k", b"k", b"k", b"l")]
    listed: list[str] = []
    markers = ""
    while len(listed) < len(begun):
        page = parts.list_uploads(request_of(f"GET /b?uploads&max-uploads=1{markers}"), call).body.decode()
        (id,) = re.findall("<UploadId>(.*?)</UploadId>", page)
        key = page.partition("<Upload>")[2].partition("<Key>")[2].partition("<")[0]
        assert ("<IsTruncated>true" in page) == (len(listed) + 1 < len(begun))
        listed.append(id)
        uploads.remove(id)
        markers = f"&key-marker={key}&upload-id-marker={id}"
    assert listed == begun


@pytest.fixture(params=[True, False], ids=["nameless", "named"])
def upload(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upload:
    """An upload on a file system with files without a name (O_TMPFILE), and on one without them."""
    if not request.param:
        monkeypatch.setattr(os, "O_TMPFILE", 0)
    return Upload(tmp_path)


def names_of(upload: Upload, tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "uploads").rglob("*") if path.name != upload.id)


def test_a_part_needs_no_files_without_a_name(upload: Upload, tmp_path: Path) -> None:
    upload.put(1, b"old bytes")
    etag = upload.put(1, b"bytes")
    assert names_of(upload, tmp_path) == ["00001", "about.json"]
    stored = tmp_path / "uploads" / upload.id / "00001"
    assert stored.read_bytes() == b"bytes"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert [(part.number, part.etag) for part in upload.uploads.parts(upload.id)] == [(1, etag)]


def test_nothing_is_left_of_a_part_that_is_broken_off(upload: Upload, tmp_path: Path) -> None:
    with pytest.raises(InterruptedError), upload.uploads.part(upload.id, 1):
        raise InterruptedError
    assert names_of(upload, tmp_path) == ["about.json"]


@pytest.mark.parametrize("before", [True, False])
def test_a_part_of_an_aborted_upload_is_refused(upload: Upload, before: bool, tmp_path: Path) -> None:
    if before:
        upload.uploads.remove(upload.id)
    with pytest.raises(S3Error) as raised, upload.uploads.part(upload.id, 1) as fd:
        os.write(fd, b"bytes")
        upload.uploads.remove(upload.id)
    assert raised.value.code == "NoSuchUpload"
    assert list((tmp_path / "uploads").iterdir()) == []
