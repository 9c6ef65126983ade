"""Whose files and processes this one believes: root's, and its own user's. And which user root chose for a node.

A program believes a node of any other user only where root put that user in charge: the folder beside which the node
listens belongs to the user, and nobody but root can have put it there. Root's own programs believe of such a node what
other users' do: descriptors and names, never its index, its state files or paths in its folders.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Container

from headrace.base.errors import UsageError

log = logging.getLogger(__name__)

_LINKS_MAX = 40
_ELSEWHERE = "name a folder that only root and this user can move"


def is_trusted(uid: int) -> bool:
    """Whether what this user wrote, or says, is believed as it is."""
    return uid in (0, os.geteuid())


def chosen_by_root(folder: str) -> int | None:
    """The user to whom root gave a directory; None where others may have put it there, or there is none."""
    path = os.path.abspath(folder)
    try:
        found, above = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or above.st_mode & 0o002 or not only_root_moves(path):
        return None
    return found.st_uid


def only_root_moves(path: str) -> bool:
    """Whether nobody but root can put another file in a path's place, or in that of a directory above it."""
    try:
        check_above(os.path.abspath(path), owners=(0,))
    except (OSError, UsageError):
        return False
    return True


def check_above(path: str, *, owners: Container[int] | None = None) -> None:
    """Refuse a path below a directory in which another user may exchange what lies on the way. path: absolute. owners:
    who may; else who `is_trusted`, and a group of theirs with a warning. UsageError; OSError."""
    pending, at, links = _names(os.path.dirname(path)), "/", 0
    _check_directory("/", path, owners)
    while pending:
        name = pending.pop(0)
        if name == "..":
            at = os.path.dirname(at)
            continue
        below = os.path.join(at, name)
        status = os.lstat(below)
        if not stat.S_ISLNK(status.st_mode):
            at = below
            _check_directory(at, path, owners)
            continue
        links += 1
        if links > _LINKS_MAX:
            raise refused_folder(path, "too many symbolic links lead there", "name the directory itself")
        if not _may(status.st_uid, owners):
            raise refused_folder(path, f"the link {below} belongs to user {status.st_uid}", _ELSEWHERE)
        target = os.readlink(below)
        at = "/" if target.startswith("/") else at
        pending = _names(target) + pending


def refused_folder(path: str, why: str, hint: str) -> UsageError:
    return UsageError(f"folder {path}", why=why, hint=hint)


def _check_directory(at: str, path: str, owners: Container[int] | None) -> None:
    status = os.lstat(at)
    if not _may(status.st_uid, owners):
        raise refused_folder(path, f"{at} belongs to user {status.st_uid}, who may exchange it", _ELSEWHERE)
    if status.st_mode & stat.S_ISVTX:
        return  # everybody moves what is his own only
    if status.st_mode & 0o002:
        raise refused_folder(path, f"everybody may exchange what is in {at}", _ELSEWHERE)
    if status.st_mode & 0o020 and status.st_gid not in (0, os.getegid()):
        if owners is not None:
            raise refused_folder(path, f"group {status.st_gid} may exchange what is in {at}", _ELSEWHERE)
        log.warning("a group may exchange a folder folder=%s above=%s gid=%d", path, at, status.st_gid)


def _may(uid: int, owners: Container[int] | None) -> bool:
    return is_trusted(uid) if owners is None else uid in owners


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
