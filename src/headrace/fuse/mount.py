"""Is a folder fit to mount at? Says what to do when it is not; cleans up a mount whose session is dead."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from headrace.base.errors import MountError
from headrace.fuse import device

ANSWER_LIMIT_S = 5.0


def place_of(mountpoint: str) -> str:
    """The path by which the kernel knows it; what is there is not asked for anything."""
    at = os.path.abspath(mountpoint)
    return os.path.join(os.path.realpath(os.path.dirname(at)), os.path.basename(at))


def prepare(mountpoint: str, *, is_served: Callable[[str], bool]) -> str:
    """The real path, fit to mount at. is_served: whether a process may serve a mount of ours there. MountError."""
    path = place_of(mountpoint)
    mounted = device.mounted_at(path)
    if mounted is not None and mounted.fstype.startswith("fuse"):
        ours = mounted.fstype == device.FSTYPE
        if not _is_dead(path, lambda: not ours or is_served(path)):
            hint = (
                f"unmount it first: {'headrace down' if mounted.fstype == device.FSTYPE else 'umount'} {path}"
            )
            raise MountError(f"{path} is a mountpoint already", why=f"a {mounted.fstype} is there", hint=hint)
        device.unmount(path, detach=True, abort=True)
    _check_folder(path)
    return os.path.realpath(path)


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


def _is_dead(path: str, is_served: Callable[[], bool]) -> bool:
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
        return not is_served()
    return found[0] in (errno.ENOTCONN, errno.ECONNABORTED)
