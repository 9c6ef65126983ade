"""Remember that an image was verified, so that a later mount need not read all of it.

A mark names the image by its digest, its inode, its size and its times, and the boot. Each write to a file sets its
ctime, which nobody can choose. Only the owner of the cache may write the image or the mark. In another boot, and after
any change, the image is verified again.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

import msgspec

from headrace.base.boot_clock import boot_id
from headrace.base.decoding import decode_json
from headrace.base.private_folder import private, unfollowed
from headrace.base.trusted_owner import is_trusted
from headrace.seal.digest import verify_image
from headrace.seal.replaced_file import UNFINISHED

MARK_BYTES_MAX = 4096


class VerifiedImage(msgspec.Struct, frozen=True):
    """The mark: which file had a digest."""

    boot: str
    digest: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


def verify_once(image: int, digest: str, mark: str) -> None:
    """Verify an image, unless the mark says that this was done. image: its descriptor. mark: the path of the file for
    it, in a directory that only the owner of the image may enter. Blocks while it reads the whole image. Raises
    InvalidImageError."""
    now = _describe(image, digest)
    if _read(mark) == now:
        return
    verify_image(image, digest)
    if _describe(image, digest) == now:
        _write(mark, now)


def mark_verified(image_path: str, digest: str, mark: str) -> None:
    """Mark an image that this process wrote, and whose digest it computed. Without an image nothing is done."""
    with suppress(FileNotFoundError), open(image_path, "rb", opener=unfollowed) as image:
        _write(mark, _describe(image.fileno(), digest))


def _describe(image: int, digest: str) -> VerifiedImage:
    status = os.fstat(image)
    return VerifiedImage(
        boot_id(),
        digest,
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _read(path: str) -> VerifiedImage | None:
    """Return a mark; None for one that is missing, damaged, or another user's."""
    with suppress(OSError, msgspec.MsgspecError):
        with open(path, "rb", opener=unfollowed) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and is_trusted(status.st_uid) and not status.st_mode & 0o022:
                return decode_json(file.read(MARK_BYTES_MAX), VerifiedImage)
    return None


def _write(path: str, mark: VerifiedImage) -> None:
    """Replace a mark by a rename. It need not be durable, and a full disk costs only the next verification."""
    draft = f"{path}.{os.urandom(4).hex()}{UNFINISHED}"
    with suppress(OSError):
        try:
            with open(draft, "xb", opener=private) as file:
                file.write(msgspec.json.encode(mark))
            os.rename(draft, path)
        except OSError:
            os.unlink(draft)
