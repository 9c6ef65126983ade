"""Directories that only this process's user may enter: caches, and state that running processes share.

They hold bytes of files that other users may not read, and processes trust their contents. So nobody else may own one,
enter it, or put another directory in its place.
"""

from __future__ import annotations

import logging
import os
import stat

from headrace.base.trusted_owner import check_above, check_directory, only_root_moves, refused_folder

log = logging.getLogger(__name__)

MODE = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_parents(path: str, mode: int = 0o755) -> None:
    """Create the missing directories above a path. Raises UsageError, before anything is created, if another user may
    exchange one that exists: a link there could lead root anywhere. Raises OSError."""
    above = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(above):
        return
    missing = above
    while not os.path.lexists(os.path.dirname(missing)):
        missing = os.path.dirname(missing)
    check_above(missing)
    make_missing(above, mode)


def make_missing(directory: str, mode: int = 0o755) -> None:
    """Create a directory of this mode, and those above it. directory: absolute, and `check_above` accepts the first
    missing part. If that is in a sticky directory, another user may create the name at this moment: that is refused.
    Raises UsageError or OSError."""
    missing, present = [], directory
    while not os.path.lexists(present):
        missing.append(present)
        present = os.path.dirname(present)
    for path in reversed(missing):
        try:
            os.mkdir(path, mode if path == directory else 0o755)
        except FileExistsError:  # another process of this user may have been faster
            check_directory(path)


def make_private(directory: str) -> bool:
    """Create a directory that only this user can enter, and its missing parents; restrict an existing one. Return
    whether this call created it. Raises UsageError if another user owns it or may exchange it. Raises OSError."""
    path = os.path.abspath(directory)
    make_parents(path)
    check_above(path)
    is_created = True
    try:
        os.mkdir(path, MODE)
    except FileExistsError:
        is_created = False
        if os.path.islink(path):
            raise refused_folder(path, "it is a link", "name the directory that it leads to") from None
    _check_owner(os.lstat(path), path)  # before the open, which fails for another user's
    fd = os.open(path, _DIRECTORY)
    try:
        _narrow(fd, path)
    finally:
        os.close(fd)
    return is_created


def hand_over(folder: str, uid: int, gid: int, *, mode: int = MODE) -> None:
    """Give a user a directory: create a missing one, or take over an empty one of root's. Any other directory stays as
    it is, and the user's own process creates or refuses it: root follows no path that another user can change.
    Raises OSError."""
    path = os.path.abspath(folder)
    missing: list[str] = []
    existing = path
    while not os.path.lexists(existing):
        missing.append(existing)
        existing = os.path.dirname(existing)
    if not only_root_moves(missing[-1] if missing else path):
        return
    for directory in reversed(missing):
        os.mkdir(directory, 0o755 if directory != path else MODE)
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid == 0 and not os.listdir(fd):
            os.fchmod(fd, mode)
            os.fchown(fd, uid, gid)
    finally:
        os.close(fd)


def private(path: str, flags: int) -> int:
    """Open a file for this user only: the `opener` of Python's open()."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def unfollowed(path: str, flags: int) -> int:
    """Open a file, but follow no link and wait for no pipe, as the directory may be another user's: the `opener` of
    Python's open()."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_owner(status: os.stat_result, path: str) -> None:
    if status.st_uid != os.geteuid():
        raise refused_folder(
            path,
            f"it belongs to user {status.st_uid}, and this is {os.geteuid()}",
            "chown it, or name another",
        )


def _narrow(fd: int, path: str) -> None:
    status = os.fstat(fd)
    _check_owner(status, path)
    mode = stat.S_IMODE(status.st_mode)
    if mode != MODE:
        os.fchmod(fd, MODE)
        # the parent's mode tells whether any other user could reach it
        if mode & 0o077 and os.stat(os.path.dirname(path)).st_mode & 0o077:
            log.warning(
                "a directory was open to other users, access is removed folder=%s mode=%04o",
                path,
                mode,
            )
