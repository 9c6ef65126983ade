"""Make the system calls on /dev/fuse and mount(2), without any policy."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

from headrace.base.errors import MountError
from headrace.base.mount_api import detached_mount, opened_directory, opened_mountpoint
from headrace.base.mount_table import mounted_at
from headrace.fuse import abi

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOATIME = 1, 2, 4, 1024
MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8
FSTYPE = "fuse.headrace"
MOUNTING_NEEDS = "mounting needs root (CAP_SYS_ADMIN); without MOUNTPOINT, a node needs none"
READ_AHEAD_KB = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def open_device() -> int:
    """Open /dev/fuse with O_CLOEXEC, because a leaked descriptor keeps a dead mount alive."""
    try:
        return os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM)
        hint = MOUNTING_NEEDS if denied else "load the fuse module; in a container pass --device /dev/fuse"
        raise MountError("cannot open /dev/fuse", why=str(error.strerror), hint=hint) from error


def mount(
    fd: int, mountpoint: str, *, allow_other: bool, read_only: bool = True, server_uid: int | None = None
) -> None:
    """Mount the connection at a path, in which no name may be a link. `server_uid` is the user that serves it, where
    that is not this process's user. The mount's source names that user, so that every user can read it in the mount
    table, and trusts it no more than that user."""
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    options += f",max_read={abi.READ_BYTES_MAX}"
    if allow_other:
        options += ",allow_other"
    flags = MS_NOSUID | MS_NODEV | MS_NOATIME | (MS_RDONLY if read_only else 0)
    source = b"headrace" if server_uid is None else b"headrace@%d" % server_uid
    try:
        # Another user may have exchanged a directory of the path since it was resolved.
        with opened_directory(mountpoint) as directory:
            target = b"/proc/self/fd/%d" % directory
            is_mounted = not _libc.mount(
                source, target, FSTYPE.encode(), ctypes.c_ulong(flags), options.encode()
            )
            number = ctypes.get_errno()
    except OSError as error:
        raise MountError(f"cannot mount at {mountpoint}", why=error.strerror or str(error)) from error
    if not is_mounted:
        hint = MOUNTING_NEEDS if number == errno.EPERM else "is /dev/fuse the kernel's, its module loaded?"
        raise MountError(f"cannot mount at {mountpoint}", why=os.strerror(number), hint=hint)


def mount_nowhere(fd: int, *, source: str) -> int:
    """Make a read-only mount of the connection that has no place in the file system, and return a descriptor of its
    root. It goes with the last descriptor, and so with a killed process. The caller must serve the connection before
    any call on the descriptor. Raises OSError."""
    options = {"fd": str(fd), "rootmode": "40000", "user_id": str(os.getuid()), "group_id": str(os.getgid())}
    options |= {"max_read": str(abi.READ_BYTES_MAX), "source": source}
    return detached_mount("fuse", [*options.items()])


def unmount(mountpoint: str, *, detach: bool, abort: bool = False) -> int:
    """Unmount a path, in which no name may be a link, and return 0 or the errno. `detach` also unmounts a mount that is
    in use, and never blocks on the file system. `abort` answers all waiting calls with an error: a killed session may
    wait for its own reply, and so keep the connection alive."""
    flags = (MNT_DETACH if detach else 0) | (MNT_FORCE if abort else 0) | UMOUNT_NOFOLLOW
    try:
        with opened_mountpoint(mountpoint) as path:
            if _libc.umount2(os.fsencode(path), flags) != 0:
                return ctypes.get_errno()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def backing_open(fd: int, file_fd: int) -> int:
    """Register a file for passthrough, and return its backing id. Raises OSError: EPERM without root, ELOOP for a file
    on stacked overlayfs."""
    # only with a mutable argument does ioctl return the call's own result, which is the id
    return int(fcntl.ioctl(fd, abi.BACKING_OPEN, bytearray(abi.BACKING_MAP.pack(file_fd, 0, 0))))


def backing_close(fd: int, backing_id: int) -> None:
    try:
        fcntl.ioctl(fd, abi.BACKING_CLOSE, backing_id.to_bytes(4, "little"))
    except OSError:
        pass  # closed already


def set_read_ahead(mountpoint: str) -> bool:
    """Set the kernel's read-ahead of cached mode to READ_AHEAD_KB; the default is 128 KiB. Return False without
    sysfs."""
    row = mounted_at(mountpoint)
    return row is not None and _set_read_ahead(row.device)


def set_read_ahead_of(root: int) -> bool:
    """Set it for a file system that is mounted nowhere, by a descriptor of its root. Blocks until the session answers
    the kernel."""
    number = os.fstat(root).st_dev
    return _set_read_ahead(f"{os.major(number)}:{os.minor(number)}")


def _set_read_ahead(device: str) -> bool:
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w") as file:
            file.write(str(READ_AHEAD_KB))
    except OSError:
        return False
    return True
