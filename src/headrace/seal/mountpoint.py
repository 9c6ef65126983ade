"""Create the directory of a place, and remove it after the seal if nobody can miss it.

The removal of a directory unmounts what other mount namespaces have at it: a container would lose its seal.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from headrace.base.errors import MountError
from headrace.base.mount_api import opened_directory
from headrace.base.mount_table import MountTableRow, mount_table
from headrace.base.private_folder import make_missing
from headrace.base.trusted_owner import only_root_moves
from headrace.seal.catalogue import Catalogue, Place
from headrace.seal.mounted import is_from

MOVABLE = "users other than root may replace a directory of this path"


def check_mountpoint(mountpoint: str) -> None:
    """Raise MountError if a seal can't be mounted at a path: the directory is not empty, or another user could lead
    those above it elsewhere."""
    subject, missing = f"cannot mount at {mountpoint}", mountpoint
    while not os.path.lexists(os.path.dirname(missing)):
        missing = os.path.dirname(missing)
    if not only_root_moves(missing):
        raise MountError(subject, why=MOVABLE)
    if os.path.lexists(mountpoint) and not os.path.ismount(mountpoint) and os.listdir(mountpoint):
        raise MountError(subject, why="the directory is not empty")


def make_mountpoint(mountpoint: str) -> int:
    """Create a directory for a seal, and those above it. Return its inode; 0 if it exists already. Raises MountError as
    `check_mountpoint` does."""
    check_mountpoint(mountpoint)
    make_missing(os.path.dirname(mountpoint))
    try:
        os.mkdir(mountpoint)
    except FileExistsError:
        return 0
    return os.lstat(mountpoint).st_ino


def remove_mountpoint(place: Place, catalogue: Catalogue) -> bool:
    """Remove the directory of a place at which no seal is to be mounted any more. Return whether it was removed. It
    stays unless `make_mountpoint` created it, if it has names or a mount, and while a process may have a seal there."""
    if not place.created_inode or not only_root_moves(place.mountpoint):
        return False
    above, name = os.path.split(place.mountpoint)
    with suppress(OSError):  # it is gone, has names, is in use, or its file system is read-only
        if _is_mounted_elsewhere(place.mountpoint, catalogue):
            return False
        with opened_directory(above) as directory:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and status.st_ino == place.created_inode:
                os.rmdir(name, dir_fd=directory)
                return True
    return False


def _is_mounted_elsewhere(mountpoint: str, catalogue: Catalogue) -> bool:
    """Return whether another mount namespace has a mount at a path, or a seal that is mounted here no more: there the
    path may be another one. Raises OSError."""
    here = mount_table()
    ids, devices = {row.id for row in here}, {row.device for row in here}
    return any(
        row.mountpoint == mountpoint or (is_from(row.source, catalogue) and row.device not in devices)
        for row in _mounts_of_namespaces()
        if row.id not in ids
    )


def _mounts_of_namespaces() -> Iterator[MountTableRow]:
    """Yield the mounts of all mount namespaces that have a process, some more than once. Raises OSError."""
    known: set[int] = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process ended
            namespace = _namespace_of(pid)
            if namespace not in known:
                yield from mount_table(int(pid))
                known.add(namespace)


def _namespace_of(pid: str) -> int:
    """Return the mount namespace of a process, or a number of the process's own where it may not be known: the mounts
    of such a process may be. Raises OSError."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except PermissionError:
        return -int(pid)
