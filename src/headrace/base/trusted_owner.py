"""Decide whose files and processes this process trusts: root's and its own user's. Determine which user root chose for
a node.

A program trusts a node of any other user only if root put that user in charge: the directory beside which the node
listens belongs to the user, and nobody but root can have created it there. Root's own programs trust such a node only
as far as other users' programs do. They accept descriptors and names, never its index, its state files or paths in its
directories.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Container, Iterator

from headrace.base.errors import UsageError

log = logging.getLogger(__name__)

_LINKS_MAX = 40
_ELSEWHERE = "name a directory that only root and this user can move"


def is_trusted(uid: int) -> bool:
    """Return whether this process trusts files and messages of a user."""
    return uid in (0, os.geteuid())


def chosen_by_root(directory: str) -> int | None:
    """Return the user to whom root gave a directory; None if others may have created it there, or if it is missing."""
    path = os.path.abspath(directory)
    try:
        status, status_above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return None
    if not stat.S_ISDIR(status.st_mode) or status_above.st_mode & 0o002 or not only_root_moves(path):
        return None
    return status.st_uid


def only_root_moves(path: str) -> bool:
    """Return whether only root can put another file in the place of a path, or of a directory above it."""
    try:
        check_above(os.path.abspath(path), owners=(0,))
    except (OSError, UsageError):
        return False
    return True


def check_above(path: str, *, owners: Container[int] | None = None) -> None:
    """Refuse a path below a directory in which another user may exchange a part of the path. path: absolute. owners:
    users who may; by default those of `is_trusted`, and their groups with a warning. Raises UsageError or OSError."""
    _check_parts(os.path.dirname(path), path, owners)


def check_directory(path: str, *, owners: Container[int] | None = None) -> None:
    """Refuse an existing directory that another user owns, or that `check_above` would refuse with what is in it. Links
    that only `owners` can exchange are followed. Raises UsageError or OSError."""
    _check_parts(path, path, owners)


def _check_parts(checked: str, path: str, owners: Container[int] | None) -> None:
    try:
        for child, status in _walk(checked):
            if not stat.S_ISLNK(status.st_mode):
                _check_directory(child, status, path, owners)
            elif not _may(status.st_uid, owners):
                raise refused_folder(path, f"the link {child} belongs to user {status.st_uid}", _ELSEWHERE)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        why = "its path has too many symbolic links"
        raise refused_folder(path, why, "name the directory itself") from error


def trusted_realpath(path: str) -> str:
    """Return the path of an existing directory without links. Raises UsageError for a link that neither root nor this
    process's user made, or OSError."""
    directory = "/"
    for child, status in _walk(os.path.abspath(path)):
        if not stat.S_ISLNK(status.st_mode):
            directory = child
        elif not is_trusted(status.st_uid):
            why = f"the link {child} belongs to user {status.st_uid}"
            raise refused_folder(path, why, "name the directory that it leads to")
    return directory


def refused_folder(path: str, why: str, hint: str) -> UsageError:
    return UsageError(f"directory {path}", why=why, hint=hint)


def _walk(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each directory and each link on the way to a path, and each that the links lead through, with its status.
    The last directory is where the path leads. path: absolute. Raises OSError: ELOOP for too many links."""
    pending, directory, links = _names(path), "/", 0
    yield directory, os.lstat(directory)
    while pending:
        name = pending.pop(0)
        child = os.path.dirname(directory) if name == ".." else os.path.join(directory, name)
        status = os.lstat(child)
        yield child, status
        if not stat.S_ISLNK(status.st_mode):
            directory = child
            continue
        links += 1
        if links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(child)
        directory = "/" if target.startswith("/") else directory
        pending = _names(target) + pending


def _check_directory(
    directory: str, status: os.stat_result, path: str, owners: Container[int] | None
) -> None:
    if not _may(status.st_uid, owners):
        raise refused_folder(
            path, f"{directory} belongs to user {status.st_uid}, who may exchange it", _ELSEWHERE
        )
    if status.st_mode & stat.S_ISVTX:
        return  # users may move only their own entries
    if status.st_mode & 0o002:
        raise refused_folder(path, f"everybody may exchange what is in {directory}", _ELSEWHERE)
    if status.st_mode & 0o020 and status.st_gid not in (0, os.getegid()):
        if owners is not None:
            raise refused_folder(
                path, f"group {status.st_gid} may exchange what is in {directory}", _ELSEWHERE
            )
        log.warning(
            "a group may exchange a directory folder=%s above=%s gid=%d", path, directory, status.st_gid
        )


def _may(uid: int, owners: Container[int] | None) -> bool:
    return is_trusted(uid) if owners is None else uid in owners


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
