"""Mounts by descriptors (Linux 5.2): a file system is made first and attached to a directory when it is whole.

The authority is fsopen(2), fsconfig(2), fsmount(2), open_tree(2), mount_setattr(2) and move_mount(2), and the kernel's
include/uapi/linux/mount.h. Most C libraries lack these calls, but their numbers are the same on every architecture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from headrace.base.libc import AT_EMPTY_PATH, c_library, c_struct, last_errno

_OPEN_TREE, _MOUNT_SETATTR = 428, 442
_OPEN_TREE_CLONE, _AT_RECURSIVE, _PRIVATE = 1, 0x8000, 1 << 18
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOEXEC = 1  # FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
_SET_STRING, _SET_FD, _CREATE = 1, 5, 6
_RDONLY, _NOSUID, _NODEV = 1, 2, 4
_FROM_EMPTY_PATH, _TO_EMPTY_PATH, _BENEATH = 0x4, 0x40, 0x200
_DETACH, _NOFOLLOW = 2, 8  # MNT_DETACH, UMOUNT_NOFOLLOW of umount2(2)
_LOG_BYTES_MAX = 8192
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Option = tuple[str, str | int]
"""A name with a text or a descriptor."""


def detached_mount(kind: str, options: Sequence[Option]) -> int:
    """Make a read-only file system with these options, in their order, and return a descriptor of its root. It is
    mounted nowhere, and goes with the last descriptor. Raises OSError with the kernel's reason."""
    context = _call(_FSOPEN, kind.encode(), _CLOEXEC)
    try:
        for name, value in options:
            if isinstance(value, str):
                _call(_FSCONFIG, context, _SET_STRING, name.encode(), os.fsencode(value), 0)
            else:
                _call(_FSCONFIG, context, _SET_FD, name.encode(), None, value)
        _call(_FSCONFIG, context, _CREATE, None, None, 0, context=context)
        return _call(_FSMOUNT, context, _CLOEXEC, _RDONLY | _NOSUID | _NODEV)
    finally:
        os.close(context)


def detached_directory(directory: int) -> int:
    """Make a mount of a directory in which no set-user-id bit and no device counts, and return a descriptor of its
    root. It is mounted nowhere, and goes with the last descriptor. directory: a descriptor. Raises OSError."""
    mount = _call(_OPEN_TREE, directory, b"", _OPEN_TREE_CLONE | AT_EMPTY_PATH | os.O_CLOEXEC)
    try:
        _call(_MOUNT_SETATTR, mount, b"", AT_EMPTY_PATH, *c_struct(_NOSUID | _NODEV, 0, _PRIVATE, 0))
    except OSError:
        os.close(mount)
        raise
    return mount


def copied_mounts(mounted: int) -> int:
    """Copy a mount with all mounts on it, and return a descriptor of its root. The copy is mounted nowhere, goes with
    the last descriptor, and passes nothing on to other mounts. mounted: a descriptor of its root. Raises OSError."""
    flags = AT_EMPTY_PATH | _AT_RECURSIVE
    copy = _call(_OPEN_TREE, mounted, b"", _OPEN_TREE_CLONE | flags | os.O_CLOEXEC)
    try:
        _call(_MOUNT_SETATTR, copy, b"", flags, *c_struct(0, 0, _PRIVATE, 0))
    except OSError:
        os.close(copy)
        raise
    return copy


def attach(mount: int, directory: int, *, beneath: bool = False) -> None:
    """Mount what one of the functions above made on a directory. Both are descriptors, so nobody can exchange a path.
    beneath: put it under the mount whose root the directory is (Linux 6.5). Raises OSError."""
    flags = _FROM_EMPTY_PATH | _TO_EMPTY_PATH | (_BENEATH if beneath else 0)
    _call(_MOVE_MOUNT, mount, b"", directory, b"", flags)


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of a block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_directory(path: str) -> Iterator[int]:
    """Open a directory by its absolute path, without a link in it. Raises OSError."""
    with closing_descriptor(os.open("/", _DIRECTORY)) as top, opened_below(top, path) as descriptor:
        yield descriptor


@contextmanager
def opened_below(directory: int, path: str) -> Iterator[int]:
    """Open a directory by its path below another one, without a link in it. Raises OSError."""
    with ExitStack() as stack:
        descriptor = directory
        for name in filter(None, path.split("/")):
            below = os.open(name, _DIRECTORY, dir_fd=descriptor)
            stack.enter_context(closing_descriptor(below))
            descriptor = below
        yield descriptor


@contextmanager
def opened_mountpoint(mountpoint: str) -> Iterator[str]:
    """Yield a path of an absolute path's last name for umount2(2), in which no name is a link: another user may have
    exchanged a directory of the path since the mount. Raises OSError."""
    above, name = os.path.split(mountpoint)
    with opened_directory(above) as directory:
        yield f"/proc/self/fd/{directory}/{name}"


def detach(mountpoint: str) -> None:
    """Unmount the last mount at a path, in which no name may be a link. Open files stay usable. Raises OSError."""
    with opened_mountpoint(mountpoint) as path:
        _unmount(path, _DETACH | _NOFOLLOW)


def detach_opened(mounted: int) -> None:
    """Unmount a mount by a descriptor of its root, also if another mount covers it. Open files stay usable. Raises
    OSError."""
    _unmount(f"/proc/self/fd/{mounted}", _DETACH)


def _unmount(path: str, flags: int) -> None:
    if c_library().umount2(os.fsencode(path), flags) != 0:
        code = last_errno()
        raise OSError(code, os.strerror(code))


def _call(number: int, *arguments: object, context: int = -1) -> int:
    result = int(c_library().syscall(number, *arguments))
    if result < 0:
        code = last_errno()
        raise OSError(code, _messages(context) or os.strerror(code))
    return result


def _messages(context: int) -> str:
    """Return what the kernel says of a failure; "" if it says nothing."""
    messages: list[str] = []
    with suppress(OSError):  # ENODATA at the end
        while context >= 0:
            messages.append(os.read(context, _LOG_BYTES_MAX).decode(errors="replace").strip())
    return "; ".join(message[2:] for message in messages if message.startswith(("e ", "w ")))
