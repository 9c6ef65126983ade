"""Mount images, and the views over them that read the cache files.

Nothing is visible before it is whole: the image is mounted nowhere, and the view is attached in one step.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence

from headrace.base.errors import InvalidImageError, MountError
from headrace.base.file_leases import gets_lease
from headrace.base.mount_api import Option, attach, detached_mount
from headrace.base.trusted_owner import is_trusted
from headrace.seal.digest import verify_image
from headrace.seal.verified import verify_once

_WHY = {
    errno.ENOTBLK: "no EROFS image can be mounted from a file of this file system (Linux 6.12 can, but not on tmpfs)",
    errno.ENODEV: "this kernel has no EROFS, or no overlayfs",
    errno.ENOSYS: "this kernel has no mount API (Linux 5.2 has)",
    errno.EPERM: "mounting needs root (CAP_SYS_ADMIN)",
}


def open_image(descriptor: int, digest: str, mark: str | None = None) -> int:
    """Return a descriptor of the root of an image, which is mounted nowhere. The image must be a file of root or of
    this process's user that nobody else may write, be open for reading only, and have the digest. mark: the path of the
    file that remembers a verification. Blocks while it reads the whole image, unless that was verified. Raises
    InvalidImageError or MountError."""
    _check_file(descriptor)
    if mark is None:
        verify_image(descriptor, digest)
    else:
        verify_once(descriptor, digest, mark)
    return _detached("an image", "erofs", [("source", f"/proc/self/fd/{descriptor}")])


def open_view(image: int, data: Sequence[int], *, source: str, cover: int | None = None) -> int:
    """Return a descriptor of the root of a view, which is mounted nowhere: names of an image, bytes of cache files.

    image: from `open_image`. data: directories where the bytes are searched, in this order. source: what the mount
    table shows as the mounted device. cover: an empty directory, whose owner and mode the root has; None: the image's.
    All descriptors may be closed then. Raises MountError.
    """
    layers: list[Option] = [("lowerdir+", layer) for layer in (cover, image) if layer is not None]
    layers += [("datadir+", folder) for folder in data]
    features: list[Option] = [("metacopy", "on"), ("redirect_dir", "on"), ("index", "off"), ("xino", "off")]
    return _detached("a sealed view", "overlay", [("source", source), *features, *layers])


def attach_view(view: int, directory: int, *, beneath: bool = False) -> None:
    """Mount a view on a directory, in one step. Open files of what it covers go on. beneath: the directory is the root
    of a mount, and the view comes under it. Raises MountError."""
    try:
        attach(view, directory, beneath=beneath)
    except OSError as error:
        raise _refused("a sealed view", error) from error


def _detached(subject: str, kind: str, options: Sequence[Option]) -> int:
    try:
        return detached_mount(kind, options)
    except OSError as error:
        raise _refused(subject, error) from error


def _refused(subject: str, error: OSError) -> MountError:
    why = _WHY.get(error.errno or 0) or error.strerror or str(error)
    return MountError(f"cannot mount {subject}", why=why)


def _check_file(descriptor: int) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidImageError("an image", why="it is no file")
    if not is_trusted(status.st_uid):
        raise InvalidImageError("an image", why=f"it belongs to user {status.st_uid}")
    if status.st_mode & 0o022:
        raise InvalidImageError("an image", why="others may write to it")
    if _has_writer(descriptor):
        raise InvalidImageError("an image", why="a process has it open for writing", hint="close it there")


def is_in_use(image: str) -> bool:
    """Return whether a file is open elsewhere, which each mount of it keeps it: those of other mount namespaces, too,
    and unmounted ones that a process still reads. False if there is no such file, or its file system gives no leases,
    as it can't be mounted then."""
    try:
        descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not gets_lease(descriptor, fcntl.F_WRLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _has_writer(descriptor: int) -> bool:
    """Return whether a file is open for writing anywhere: then no read lease is granted."""
    try:
        return not gets_lease(descriptor, fcntl.F_RDLCK)
    except OSError as error:
        raise MountError("cannot mount an image", why=f"its file system gives no leases: {error}") from error
