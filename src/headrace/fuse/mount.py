"""Check that a directory can be mounted at, say what to do when it can't, and unmount a mount whose session is dead."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from headrace.base.errors import MountError, UsageError
from headrace.base.mount_table import mounted_at
from headrace.base.trusted_owner import trusted_realpath
from headrace.fuse import device
from headrace.fuse.abi import MOUNTPOINTS_XATTR

ANSWER_LIMIT_S = 5.0
"""Seconds after which a mount that did not answer statvfs counts as hanging."""


def mountpoint_path(mountpoint: str) -> str:
    """Return the path by which the kernel knows a mountpoint, without a call on what is mounted there."""
    path = os.path.abspath(mountpoint)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def prepare(mountpoint: str, *, is_served: Callable[[str], bool]) -> str:
    """Return the real path of a directory to mount at, or raise MountError. `is_served` says whether a process may
    serve a Headrace mount there."""
    path = mountpoint_path(mountpoint)
    mounted = mounted_at(path)
    if mounted is not None and mounted.kind.startswith("fuse"):
        is_headrace = mounted.kind == device.FSTYPE
        if not _is_dead(path, lambda: not is_headrace or is_served(path)):
            why = f"a {mounted.kind} file system is mounted there"
            hint = f"unmount it first: {'headrace down' if is_headrace else 'umount'} {path}"
            raise MountError(f"{path} is a mountpoint already", why=why, hint=hint)
        device.unmount(path, detach=True, abort=True)
    path = _resolved(mountpoint)
    _check_directory(path)
    return path


def keep_mountpoints(mountpoint: str) -> None:
    """Have the session of a mount keep the names of all places below it where something is mounted, or is about to be.
    Call it as root before a mount. Blocks on the session. Does nothing where the mount is covered by another one."""
    with suppress(OSError):
        os.getxattr(mountpoint, MOUNTPOINTS_XATTR)


def _resolved(mountpoint: str) -> str:
    """Return the path without links. Raises MountError for a link of another user, who could lead the mount to any
    empty directory of root."""
    try:
        return trusted_realpath(mountpoint)
    except UsageError as error:
        raise MountError(f"cannot mount at {mountpoint}", why=error.why, hint=error.hint) from error
    except OSError:
        return mountpoint_path(mountpoint)  # the directory is missing, or can't be listed


def _check_directory(path: str) -> None:
    try:
        names = os.listdir(path)
    except FileNotFoundError as error:
        raise MountError(f"{path} does not exist", hint=f"create it: mkdir -p {path}") from error
    except NotADirectoryError as error:
        raise MountError(f"{path} is not a directory", hint="name an empty directory") from error
    except OSError as error:
        raise MountError(f"cannot list {path}", why=str(error.strerror)) from error
    if names:
        why = f"it has {len(names)} names, {names[0]!r} among them, that a mount would hide"
        raise MountError(f"{path} is not empty", why=why, hint="name an empty directory")


def _is_dead(path: str, is_served: Callable[[], bool]) -> bool:
    """Return whether no process serves the mount. The kernel answers ENOTCONN at once if no process has the connection
    open. A mount that hangs may be served, and must stay. But it also hangs after all its processes were killed, while
    a thread of one still waits for a reply."""
    results: list[int] = []

    def call_statvfs() -> None:
        try:
            os.statvfs(path)  # always reaches the session; the kernel may answer stat from its cache
            results.append(0)
        except OSError as error:
            results.append(error.errno or errno.EIO)

    thread = threading.Thread(target=call_statvfs, daemon=True)
    thread.start()
    thread.join(ANSWER_LIMIT_S)
    if not results:
        return not is_served()
    return results[0] in (errno.ENOTCONN, errno.ECONNABORTED)
