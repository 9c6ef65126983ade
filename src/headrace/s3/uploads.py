"""Store uploads in parts that are in progress, in directories beside the upper layer, on its disk.

    uploads/ID/about.json   the key; written completely before the client receives the id
    uploads/ID/00001        a part, with its MD5 in an attribute; it has its name once all its bytes were checked

A part that is being received has no name (O_TMPFILE), so a crash leaves nothing of it. On a file system without such
files it has a temporary name, and what a crash leaves is removed with the upload. Parts with a number outlive the
gateway, and the upload continues. An upload that received no part for a day is removed. An attribute of its directory
has the time of the last part (`Moment`), and only time in which the machine ran counts. Several gateways may share
the directory. Errors of the disk are StoreError.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator

import msgspec

from headrace.base.beneath import Root
from headrace.base.boot_clock import Moment
from headrace.base.decoding import decode_json
from headrace.base.errors import NoSpaceError, StoreError
from headrace.base.model import ObjectMetadata
from headrace.base.os_errors import OsErrorRow, OsErrorTable, translating_os_errors
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3.checksums import Checksum, ChecksumRequest
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import attributes_of
from headrace.vfs.staged_file import StagedFile
from headrace.vfs.streams import copy_range

log = logging.getLogger(__name__)

IDLE_S_MAX = 86_400
"""Seconds without a new part after which an upload is deleted."""
NUMBER_MAX = 10_000
COPY_STEP_BYTES = 64 << 20
LAST_PART_ATTRIBUTE = "user.headrace.last_part"
"""Attribute of an upload's directory with the time of its last part."""
_ID = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9]{5}")
_DISK_IS_FULL = OsErrorRow(NoSpaceError, "free some space on the disk of the first cache directory")
_UPLOAD_ERRORS = OsErrorTable(
    {errno.ENOSPC: _DISK_IS_FULL, errno.EDQUOT: _DISK_IS_FULL},
    OsErrorRow(StoreError, "run the gateway as the user who runs the node"),
)


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describes an upload, in about.json. `bucket` and `key` together are a path of the namespace."""

    bucket: bytes
    key: bytes
    begun_s: float
    mtime_text: str = ""
    metadata: ObjectMetadata = ObjectMetadata()
    checksum_request: ChecksumRequest = ChecksumRequest()


class UploadPart(msgspec.Struct, frozen=True):
    """Describes a stored part. `etag` is the MD5 in hex."""

    number: int
    size_bytes: int
    etag: str
    mtime_ns: int
    checksum: Checksum | None = None


class Uploads:
    """Stores uploads in a directory that the first one creates. `durable` makes writes to its disk durable."""

    def __init__(self, directory: bytes, durable: DurableWrites) -> None:
        self._directory = directory
        self._durable = durable

    def begin(self, about: About) -> str:
        """Create an upload, and return its id. Later ids sort behind earlier ones."""
        id = f"{time.time_ns():016x}{secrets.token_hex(8)}"
        with translating_os_errors("uploads in parts", _UPLOAD_ERRORS):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            temporary = self._directory + b"/new-" + id.encode()
            os.mkdir(temporary, 0o700)
            _record_activity(temporary)
            with open(temporary + b"/about.json", "wb") as out:
                out.write(msgspec.json.encode(about))
                out.flush()
                self._durable.write_back(out.fileno())
            os.rename(temporary, self._path(id))
            self._durable.flush()
        return id

    def about(self, id: str, bucket: bytes, key: bytes) -> About:
        """Return the description of an upload. NoSuchUpload, also for an upload of another key."""
        about = self._about(id) if _ID.fullmatch(id) else None
        if about is None or (about.bucket, about.key) != (bucket, key):
            raise no_such_upload()
        return about

    def _about(self, id: str) -> About | None:
        try:
            with open(self._path(id) + b"/about.json", "rb") as source:
                return decode_json(source.read(), About)
        except (OSError, msgspec.MsgspecError):
            return None

    def all_of(self, bucket: bytes) -> list[tuple[str, About]]:
        """Return the uploads of a bucket, in the order of keys and of ids."""
        uploads = []
        for name in self._names():
            about = self._about(name)
            if about is not None and about.bucket == bucket:
                uploads.append((name, about))
        return sorted(uploads, key=lambda row: (row[1].key, row[0]))

    @contextlib.contextmanager
    def part(self, id: str, number: int) -> Iterator[int]:
        """Yield a descriptor for the bytes of a part. When the context ends without an error, the part is durable and
        has its number. The caller must record its ETag before."""
        with contextlib.closing(Root(self._directory)) as root:
            upload = root.at(b"/" + id.encode())
            with _part_errors():
                file = StagedFile(root.at(b"/"), lambda: upload / _temporary_name(), mode=0o600)
            try:
                yield file.fd
                with _part_errors():
                    self._durable.write_back(file.fd)
                    file.path().rename(upload / (b"%05d" % number))
                    _record_activity(self._path(id))
                    self._durable.flush()
            finally:
                os.close(file.fd)
                file.discard()

    def parts(self, id: str) -> list[UploadPart]:
        """Return the complete parts, by number."""
        parts = []
        for name in sorted(_listed(self._path(id))):
            if _PART.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    parts.append(_described(int(name), self._part_path(id, int(name))))
        return parts

    def append(self, id: str, part: UploadPart, target: int) -> None:
        """Append a part's bytes to a file. The kernel copies them. Raises InvalidPart if other bytes were stored under
        its number since `parts` described it."""
        with translating_os_errors("uploads in parts", _UPLOAD_ERRORS):
            try:
                source = os.open(self._part_path(id, part.number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise no_such_upload() from None
            try:
                stored = _described(part.number, source)
                if (stored.etag, stored.size_bytes) != (part.etag, part.size_bytes):
                    raise S3Error("InvalidPart", f"Part {part.number} was uploaded again meanwhile.")
                end = os.lseek(target, 0, os.SEEK_END)
                _copy_all(source, target, end)
            finally:
                os.close(source)

    def remove(self, id: str) -> None:
        """Delete an upload. When this returns, it no longer exists."""
        with translating_os_errors("uploads in parts", _UPLOAD_ERRORS):
            removed = self._directory + b"/gone-" + id.encode()
            try:
                os.rename(self._path(id), removed)
            except FileNotFoundError:
                return
            shutil.rmtree(removed, ignore_errors=True)

    def remove_idle(self) -> int:
        """Delete the uploads without a new part for IDLE_S_MAX, and leftovers of crashes. Return how many."""
        count = 0
        for name in _listed(self._directory):
            path = self._directory + b"/" + name.encode()
            if _idle_s(path) > IDLE_S_MAX:
                shutil.rmtree(path, ignore_errors=True)
                log.info("a multipart upload was removed, it received no part for a day id=%s", name)
                count += 1
        return count

    def _names(self) -> list[str]:
        return [name for name in _listed(self._directory) if _ID.fullmatch(name)]

    def _path(self, id: str) -> bytes:
        return self._directory + b"/" + id.encode()

    def _part_path(self, id: str, number: int) -> bytes:
        return self._path(id) + b"/%05d" % number


def append_bytes(fd: int, data: bytes | bytearray) -> None:
    """Write all bytes at the position of a part's descriptor. On a disk that is nearly full, one system call writes
    fewer bytes than it is given, without an error. Raises NoSpaceError or StoreError."""
    with translating_os_errors("uploads in parts", _UPLOAD_ERRORS), memoryview(data) as rest:
        done = 0
        while done < len(rest):
            done += os.write(fd, rest[done:])


def no_such_upload() -> S3Error:
    return S3Error(
        "NoSuchUpload",
        "The specified upload does not exist. It may have been aborted or completed, or removed after an idle day.",
    )


def _temporary_name() -> bytes:
    """Return a name that no part has, also none that a gateway left when it crashed."""
    return b"new-" + secrets.token_hex(16).encode()


@contextlib.contextmanager
def _part_errors() -> Iterator[None]:
    """Raise NoSuchUpload if the upload was aborted meanwhile; otherwise as for all uploads."""
    with translating_os_errors("uploads in parts", _UPLOAD_ERRORS):
        try:
            yield
        except FileNotFoundError:
            raise no_such_upload() from None


def _listed(directory: bytes) -> list[str]:
    try:
        return [os.fsdecode(name) for name in os.listdir(directory)]
    except FileNotFoundError:
        return []


def _described(number: int, target: bytes | int) -> UploadPart:
    """Return the description of a stored part. `target` is its path, or a descriptor."""
    part_stat = os.stat(target)
    attributes = attributes_of(part_stat, target)
    etag = attributes.etag.strip('"')
    return UploadPart(number, part_stat.st_size, etag, part_stat.st_mtime_ns, attributes.checksum)


def _record_activity(directory: bytes) -> None:
    with contextlib.suppress(OSError):  # aborted, or the disk is full: the time of the part before remains
        os.setxattr(directory, LAST_PART_ATTRIBUTE, msgspec.json.encode(Moment.now()))


def _idle_s(directory: bytes) -> float:
    """Return the least time since the last part. The times of files are no measure, as they jump with the clock."""
    try:
        return decode_json(os.getxattr(directory, LAST_PART_ATTRIBUTE), Moment).age_s()
    except (OSError, msgspec.MsgspecError):
        return Moment("", 0.0).age_s()  # an older release wrote it: treated as a time of another boot


def _copy_all(source: int, target: int, offset: int) -> None:
    remaining, done = os.fstat(source).st_size, 0
    while remaining > 0:
        copied = copy_range(source, done, target, offset + done, min(remaining, COPY_STEP_BYTES))
        if copied == 0:
            raise StoreError("a part of an upload", why="its file was truncated")
        done, remaining = done + copied, remaining - copied
