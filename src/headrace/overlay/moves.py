"""Complete moves of directories from `work` to their place in the upper layer, also those that a crash interrupted."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat

from headrace.base.beneath import EXCHANGE, NOREPLACE, SafePath
from headrace.overlay import workdir
from headrace.overlay.kept_times import keeping_times
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import base_version, bases_of, is_whiteout, mark_value
from headrace.overlay.upper import Upper

log = logging.getLogger(__name__)


def clear_work(upper: Upper) -> list[bytes]:
    """Delete the entries of dead processes in `work`. Directories that were being renamed, or moved to `gone`, are
    moved to their place instead, and so are whiteouts of renamed files. An entry whose marks can't be read now stays.
    Return the paths of what was moved into the tree."""
    moved: list[bytes] = []
    for name in upper.work.at(b"/").names():
        entry = upper.work.at(b"/" + name)
        if not workdir.is_orphaned(name):
            continue
        try:
            moving, origin = mark_value(entry, MARKS.moving), mark_value(entry, MARKS.path)
            hidden = _finish_whiteout(upper, entry)
        except OSError as error:  # it may be a directory of a user
            log.warning("an entry of a dead process can't be read, retrying entry=%s error=%s", entry, error)
            continue
        target, _, work_name = (moving or b"").partition(b"\0")
        if target and work_name in (b"", name):
            if _finish_move(upper, entry, target):
                moved.append(target)
        elif hidden:
            moved.append(hidden)
        elif origin is not None:
            entry.rename(upper.new_in_gone())
        else:
            entry.remove_tree()
    return moved


def move_in(upper: Upper, directory: SafePath, target: bytes) -> None:
    """Move a directory of `work` to its place by one rename. It replaces an entry that hides the name, or a directory
    without visible names. Raises FileExistsError for anything else.

    A file is moved only after a crash; it replaces any other file. The caller holds the lock.
    """
    upper_path = upper.at(target)
    try:
        directory.rename(upper_path, NOREPLACE)
    except FileExistsError:
        if directory.is_directory():
            _move_over(upper, directory, target)
        else:
            directory.rename(upper_path)
    unmark(upper_path)


def _move_over(upper: Upper, directory: SafePath, target: bytes) -> None:
    """Exchange the directory with the entry at its place, then delete that entry."""
    existing, upper_path = upper.lookup(target), upper.at(target)
    if isinstance(existing, os.stat_result) and (
        not stat.S_ISDIR(existing.st_mode) or any(upper.names(target).values())
    ):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target))
    unmark(upper_path)  # otherwise clear_work would treat it as a directory that is being moved
    directory.rename(upper_path, EXCHANGE)
    directory.remove_tree()


def _finish_move(upper: Upper, directory: SafePath, target: bytes) -> bool:
    """Move an orphaned directory to its place. Return whether this process moved it; a failure is logged."""
    try:
        with upper.lock:
            move_in(upper, directory, target)
        return True
    except FileNotFoundError:
        if not directory.exists():
            return False  # another process moved it
        why = "its parent does not exist"
    except OSError as error:
        why = str(error)
    log.warning(
        "a directory that was being renamed can't be moved to its new name path=%s old=%s why=%s",
        *(os.fsdecode(target), directory, why),
    )
    return False


def _finish_whiteout(upper: Upper, whiteout: SafePath) -> bytes:
    """Move an orphaned whiteout to the name that it hides, if the whiteout there has no base: a process died after the
    rename that left that one. Return the path; b"" if nothing was moved. Raises OSError."""
    status = whiteout.seen()
    bases = bases_of(whiteout) if status is not None and is_whiteout(status) else []
    for base in bases:
        with upper.lock:
            place = upper.at(base.path)
            existing = place.seen()
            if existing is not None and is_whiteout(existing) and base_version(place, base.path) is None:
                with keeping_times(place.parent):
                    whiteout.rename(place)
                return base.path
    return b""


def unmark(path: SafePath) -> None:
    """Remove the marks of a move that is complete."""
    for mark in (MARKS.moving, MARKS.path):
        with contextlib.suppress(OSError):
            path.removexattr(mark)
