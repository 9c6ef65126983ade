"""Read and write the marks on entries of the upper layer: whiteouts, removed directories, and the version that an entry
replaces at the origin."""

from __future__ import annotations

import errno
import os
import stat

import msgspec

from headrace.base.beneath import SafePath
from headrace.base.decoding import decode_msgpack
from headrace.base.model import Version
from headrace.overlay.mark_names import MARKS, WHITEOUT_MODE

BASES_MAX = 8
"""Most base versions that are kept of a file's other names."""
_UNMARKED = frozenset(
    {
        *(errno.ENODATA, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EOPNOTSUPP),
        *(errno.EACCES, errno.EPERM),  # with `--user`, of a file that its owner may not read
        errno.ENAMETOOLONG,  # no call can set a mark there either
    }
)
"""Errors that mean that an entry has no mark."""


class BaseVersion(msgspec.Struct, frozen=True):
    """Hold the version that a file replaces at one path. A file with several names (hard links) has one for each."""

    path: bytes
    version: Version


def base_version(file: SafePath | int, path: bytes) -> Version | None:
    """Return the version that a file replaces at a path. file: a path or an open file. Raises OSError if that is not
    known now: without its base a file would become a conflict copy, and a whiteout would remove any version."""
    return next((base.version for base in bases_of(file) if base.path == path), None)


def set_base(file: SafePath, path: bytes, version: Version | None) -> None:
    """Record the version that a file replaces at a path. None: it replaces nothing there, also if it had that name
    before and replaced a version then."""
    recorded = bases_of(file)
    kept = [previous for previous in recorded if previous.path != path]
    if version is None and len(kept) == len(recorded):
        return
    bases = kept if version is None else [*kept[-BASES_MAX:], BaseVersion(path, version)]
    file.setxattr(MARKS.base, msgspec.msgpack.encode(bases))


def bases_of(file: SafePath | int) -> list[BaseVersion]:
    """Return the versions that a file replaces at its names. Raises OSError as `base_version` does."""
    value = mark_value(file, MARKS.base)
    try:
        return [] if value is None else decode_msgpack(value, list[BaseVersion])
    except msgspec.MsgspecError:
        return []


def is_whiteout(status: os.stat_result) -> bool:
    """Return whether a status is that of a whiteout."""
    if status.st_mode == WHITEOUT_MODE and MARKS.single_owner:
        return True
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def make_whiteout(place: SafePath, path: bytes, base: Version | None) -> None:
    """Create a whiteout in `work`, or in an existing directory. path: the name that it will hide. base: the origin's
    version of that name."""
    if MARKS.single_owner:
        place.mknod(stat.S_IFREG | 0o600, 0)
        place.chmod(stat.S_IMODE(WHITEOUT_MODE))
    else:
        place.mknod(stat.S_IFCHR, os.makedev(0, 0))
    if base is not None:
        set_base(place, path, base)


def make_removed(path: SafePath) -> None:
    """Create a directory that hides the origin's."""
    path.mkdir(0o755)
    path.setxattr(MARKS.removed, b"")


def is_removed(path: SafePath) -> bool:
    """Return whether a directory has the mark `removed`. Raises OSError if that is not known now. It reads the mark by
    a descriptor, which is faster than /proc/self/fd: most lookups check each directory of a path."""
    fd = -1
    try:
        fd = path.open(os.O_RDONLY | os.O_DIRECTORY)
        os.getxattr(fd, MARKS.removed)
    except OSError as error:
        return is_marked(error)
    finally:
        if fd >= 0:
            os.close(fd)
    return True


def mark_value(file: SafePath | bytes | int, mark: str) -> bytes | None:
    """Return the value of a mark; None if the entry does not have it. Raises OSError if that is not known."""
    try:
        return file.getxattr(mark) if isinstance(file, SafePath) else os.getxattr(file, mark)
    except OSError as error:
        is_marked(error)
        return None


def is_marked(error: OSError) -> bool:
    """Return False if an error means that an entry has no mark. Raises other errors."""
    if error.errno not in _UNMARKED:
        raise error
    return False
