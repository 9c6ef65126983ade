"""Uploads in parts that have begun: folders beside the upper layer, on its disk.

    uploads/ID/about.json   which key, written whole before the id is told
    uploads/ID/00001        a part, with its MD5 in an attribute; it has its name once all its bytes were checked

What is being received has no name (O_TMPFILE), so a crash leaves nothing of it; parts that have one outlive the
gateway, and the upload goes on. One of which nothing was heard for a day is removed: of the day in which the machine
ran, as the folder's attribute says when that was (`Moment`). Several gateways may share the folder. Errors of the disk
are StoreError.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator

import msgspec

from headrace.base.boot_clock import Moment
from headrace.base.decoding import decode_json
from headrace.base.errors import NoSpaceError, StoreError
from headrace.base.model import ObjectMetadata
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3.checksums import Checksum, ChecksumRequest
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import facts_of

log = logging.getLogger(__name__)

SILENT_S_MAX = 86_400
NUMBER_MAX = 10_000
COPY_STEP_BYTES = 64 << 20
HEARD = "user.headrace.heard"
"""Of a folder: the moment of its last part."""
_ID = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(r"[0-9]{5}")
_serial = itertools.count()


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """key: the path in the namespace, of which the bucket is the first part."""

    bucket: bytes
    key: bytes
    begun_s: float
    mtime_text: str = ""
    extras: ObjectMetadata = ObjectMetadata()
    wish: ChecksumRequest = ChecksumRequest()


class UploadPart(msgspec.Struct, frozen=True):
    """etag: the MD5 in hex."""

    number: int
    size_bytes: int
    etag: str
    mtime_ns: int
    checksum: Checksum | None = None


class Uploads:
    """folder: made when the first upload begins. durable: of its disk."""

    def __init__(self, folder: bytes, durable: DurableWrites) -> None:
        self._folder = folder
        self._durable = durable

    def begin(self, about: About) -> str:
        """The new upload's id."""
        id = secrets.token_hex(16)
        with _told():
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            made = self._folder + b"/new-" + id.encode()
            os.mkdir(made, 0o700)
            _note_heard(made)
            with open(made + b"/about.json", "wb") as out:
                out.write(msgspec.json.encode(about))
                out.flush()
                self._durable.write_back(out.fileno())
            os.rename(made, self._at(id))
            self._durable.flush()
        return id

    def about(self, id: str, bucket: bytes, key: bytes) -> About:
        """NoSuchUpload, also for one of another key."""
        found = self._about(id) if _ID.fullmatch(id) else None
        if found is None or (found.bucket, found.key) != (bucket, key):
            raise no_such_upload()
        return found

    def _about(self, id: str) -> About | None:
        try:
            with open(self._at(id) + b"/about.json", "rb") as source:
                return decode_json(source.read(), About)
        except (OSError, msgspec.MsgspecError):
            return None

    def all_of(self, bucket: bytes) -> Iterator[tuple[str, About]]:
        """In the order of keys, and of time."""
        found = []
        for name in self._names():
            about = self._about(name)
            if about is not None and about.bucket == bucket:
                found.append((name, about))
        return iter(sorted(found, key=lambda one: (one[1].key, one[1].begun_s)))

    @contextlib.contextmanager
    def part(self, id: str, number: int) -> Iterator[int]:
        """A descriptor for the bytes of a part, which has its number when this ends well; its ETag is noted first."""
        with _told():
            fd = os.open(self._folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        try:
            yield fd
            with _told():
                self._durable.write_back(fd)
                temporary = self._at(id) + b"/new-%d-%d" % (os.getpid(), next(_serial))
                try:
                    os.link(b"/proc/self/fd/%d" % fd, temporary, src_dir_fd=fd, follow_symlinks=True)
                    os.rename(temporary, self._part_at(id, number))
                    _note_heard(self._at(id))
                    self._durable.flush()
                except FileNotFoundError:  # aborted meanwhile
                    raise no_such_upload() from None
        finally:
            os.close(fd)

    def parts(self, id: str) -> list[UploadPart]:
        """Those that are whole, by number."""
        found = []
        for name in sorted(_listed(self._at(id))):
            if _PART.fullmatch(name):
                at = self._part_at(id, int(name))
                with contextlib.suppress(FileNotFoundError):
                    seen = os.stat(at)
                    facts = facts_of(seen, at)
                    etag = facts.etag.strip('"')
                    found.append(UploadPart(int(name), seen.st_size, etag, seen.st_mtime_ns, facts.checksum))
        return found

    def append(self, id: str, number: int, target: int) -> None:
        """A part's bytes to the end of a file, by the kernel."""
        with _told():
            try:
                source = os.open(self._part_at(id, number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise no_such_upload() from None
            try:
                end = os.lseek(target, 0, os.SEEK_END)
                _copy_all(source, target, end)
            finally:
                os.close(source)

    def remove(self, id: str) -> None:
        """From here on there is no such upload."""
        with _told():
            gone = self._folder + b"/gone-" + id.encode()
            try:
                os.rename(self._at(id), gone)
            except FileNotFoundError:
                return
            shutil.rmtree(gone, ignore_errors=True)

    def remove_silent(self) -> int:
        """Those of which nothing was heard for long, and what crashes left. → how many."""
        count = 0
        for name in _listed(self._folder):
            at = self._folder + b"/" + name.encode()
            if _silent_s(at) > SILENT_S_MAX:
                shutil.rmtree(at, ignore_errors=True)
                log.info("upload in parts removed, as nothing was heard of it id=%s", name)
                count += 1
        return count

    def _names(self) -> list[str]:
        return [name for name in _listed(self._folder) if _ID.fullmatch(name)]

    def _at(self, id: str) -> bytes:
        return self._folder + b"/" + id.encode()

    def _part_at(self, id: str, number: int) -> bytes:
        return self._at(id) + b"/%05d" % number


def no_such_upload() -> S3Error:
    return S3Error(
        "NoSuchUpload",
        "The specified upload does not exist. It may have been aborted or completed, or have been silent for a day.",
    )


def _listed(folder: bytes) -> list[str]:
    try:
        return [os.fsdecode(name) for name in os.listdir(folder)]
    except FileNotFoundError:
        return []


def _note_heard(folder: bytes) -> None:
    with contextlib.suppress(
        OSError
    ):  # it is aborted, or the disk is full: then it counts from the part before
        os.setxattr(folder, HEARD, msgspec.json.encode(Moment.now()))


def _silent_s(folder: bytes) -> float:
    """Return how long nothing was heard of an upload, at least. Times of files don't say: they jump with the clock."""
    try:
        return decode_json(os.getxattr(folder, HEARD), Moment).age_s()
    except (OSError, msgspec.MsgspecError):
        return Moment("", 0.0).age_s()  # of an older release: as if it were of another boot


def _copy_all(source: int, target: int, at: int) -> None:
    left, done = os.fstat(source).st_size, 0
    while left > 0:
        try:
            copied = os.copy_file_range(source, target, min(left, COPY_STEP_BYTES), done, at + done)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            os.lseek(target, at + done, os.SEEK_SET)
            copied = os.sendfile(target, source, done, left)
        if copied == 0:
            raise StoreError("a part of an upload", why="its file was cut short")
        done, left = done + copied, left - copied


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Errors of the system become ours."""
    try:
        yield
    except (StoreError, NoSpaceError):
        raise
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpaceError(
                "uploads in parts", why=why, hint="free some space on the disk of the first cache folder"
            ) from None
        raise StoreError(
            "uploads in parts", why=why, hint="run the gateway as the user who runs the node"
        ) from None
