"""Is a folder fit to mount at? Says what to do when it is not; cleans up a mount whose session is dead."""

from __future__ import annotations

import errno
import os
import threading

from headrace.base.errors import MountError
from headrace.fuse import device

ANSWER_LIMIT_S = 5.0
_SERVERS = ("headrace.fuse.holder", "headrace.fuse.session_main")


def prepare(mountpoint: str) -> str:
    """The real path, fit to mount at. MountError."""
    path = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(mountpoint))), _last(mountpoint))
    mounted = device.mounted_at(path)
    if mounted is not None and mounted.fstype.startswith("fuse"):
        if not _is_dead(path, ours=mounted.fstype == device.FSTYPE):
            hint = (
                f"unmount it first: {'headrace down' if mounted.fstype == device.FSTYPE else 'umount'} {path}"
            )
            raise MountError(f"{path} is a mountpoint already", why=f"a {mounted.fstype} is there", hint=hint)
        device.unmount(path, detach=True, abort=True)
    _check_folder(path)
    return os.path.realpath(path)


def is_served(mountpoint: str) -> bool:
    """Whether a process of ours has the mount."""
    return any(find_process(module, mountpoint) for module in _SERVERS)


def find_process(module: str, mountpoint: str) -> int:
    """The pid of the process that runs this module for this mount; 0 when there is none."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as source:
                    words = source.read().split(b"\0")
            except OSError:
                continue
            if module.encode() in words and os.fsencode(mountpoint) in words:
                return int(name)
    return 0


def _last(mountpoint: str) -> str:
    return os.path.basename(os.path.abspath(mountpoint))


def _check_folder(path: str) -> None:
    try:
        names = os.listdir(path)
    except FileNotFoundError as error:
        raise MountError(f"{path} does not exist", hint=f"make it: mkdir -p {path}") from error
    except NotADirectoryError as error:
        raise MountError(f"{path} is not a directory", hint="name an empty folder") from error
    except OSError as error:
        raise MountError(f"cannot look at {path}", why=str(error.strerror)) from error
    if names:
        why = f"it holds {len(names)} names, {names[0]!r} among them, that a mount would hide"
        raise MountError(f"{path} is not empty", why=why, hint="name an empty folder")


def _is_dead(path: str, *, ours: bool) -> bool:
    """A mount nobody serves says ENOTCONN at once. One that hangs may be alive: not ours to take away. But where all
    its processes were killed, and a thread of one waits for an answer that none of them gives now, it hangs, too."""
    found: list[int] = []

    def ask() -> None:
        try:
            os.statvfs(path)  # always asked of the session; stat may be answered from the kernel's cache
            found.append(0)
        except OSError as error:
            found.append(error.errno or errno.EIO)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_LIMIT_S)
    if not found:
        return ours and not is_served(path)
    return found[0] in (errno.ENOTCONN, errno.ECONNABORTED)
