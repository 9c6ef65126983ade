"""Mount an image."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat

from headrace.base.errors import InvalidImageError, MountError
from headrace.base.libc import c_library, last_errno
from headrace.base.trusted_owner import is_trusted
from headrace.seal.digest import verify_image

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_WHY = {
    errno.ENOTBLK: "this kernel mounts no EROFS image from a file",
    errno.ENODEV: "this kernel has no EROFS",
}


def mount_image(descriptor: int, digest: str, directory: int) -> None:
    """Mount an image on a directory. Both are descriptors, so nobody can exchange a path meanwhile. The image must be a
    file of root or of this process's user, open for reading only, that nobody else may write, and have the digest.
    InvalidImageError if it is not; MountError. It reads the whole image."""
    _check_file(descriptor)
    verify_image(descriptor, digest)
    source, target = (b"/proc/self/fd/%d" % number for number in (descriptor, directory))
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if c_library().mount(source, target, b"erofs", flags, None) != 0:
        number = last_errno()
        raise MountError("cannot mount an image", why=_WHY.get(number, os.strerror(number)))


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


def _has_writer(descriptor: int) -> bool:
    """Return whether a file is open for writing anywhere: then no read lease is granted. Whoever opens it for writing
    while the lease is held makes the kernel send a signal, which is one that does nothing by default."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    except OSError as error:
        raise MountError("cannot mount an image", why=f"its file system gives no leases: {error}") from error
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
