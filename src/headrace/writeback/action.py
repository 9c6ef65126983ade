"""Read files of the upper layer for write-back, and order directories by depth."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.base.beneath import SafePath
from headrace.base.file_times import stored_ns
from headrace.base.model import Attributes
from headrace.overlay.marks import base_version, is_removed, is_whiteout
from headrace.overlay.syscalls import birth_ns
from headrace.writeback.reconcile import UpperEntry, UpperKind
from headrace.writeback.sync_journal import JournalRecord


@dataclass(slots=True)
class WriteBackCounts:
    """Count what write-back has done since the start."""

    files_persisted: int = 0
    bytes_persisted: int = 0
    removed: int = 0
    failures: int = 0


def upper_entry(
    path: bytes, safe_path: SafePath, status: os.stat_result, *, is_mode_root: bool
) -> UpperEntry:
    """Read the entry at a path, as far as a step depends on it. Only `status` is read of a file, because a scan cannot
    afford attributes of a million files."""
    if is_whiteout(status):  # first: with `--user` a whiteout is a file
        return UpperEntry(UpperKind.WHITEOUT, status)
    if stat.S_ISREG(status.st_mode):
        return UpperEntry(UpperKind.FILE, status)
    base = base_version(safe_path, path)
    if not stat.S_ISDIR(status.st_mode):
        return UpperEntry(UpperKind.OTHER, status, base)
    if is_removed(safe_path):
        return UpperEntry(UpperKind.REMOVED_DIRECTORY, status, base)
    return UpperEntry(UpperKind.MODE_ROOT if is_mode_root else UpperKind.DIRECTORY, status, base)


def size_of(safe_path: SafePath) -> int:
    """Return the size of a file; 0 for anything else, and for what can't be read now."""
    return file_at(safe_path)[0]


def file_at(safe_path: SafePath) -> tuple[int, int]:
    """Return the size and the inode number of a file; 0, 0 for anything else, and for what can't be read now."""
    try:
        status = safe_path.seen()
    except OSError:
        return 0, 0
    is_file = status is not None and stat.S_ISREG(status.st_mode)
    return (status.st_size, status.st_ino) if status is not None and is_file else (0, 0)


def is_file_of(safe_path: SafePath, row: JournalRecord) -> bool:
    """Return whether a file may be the one that a row describes, under any name and with any later change. The disk
    may give its inode number to a new file, which was created after that state."""
    if file_at(safe_path)[1] != row.inode:
        return False
    try:
        fd = safe_path.open(os.O_PATH)
        try:
            born_ns = birth_ns(fd)
        finally:
            os.close(fd)
    except OSError:  # it can't be read now, so it may be
        return True
    return born_ns is None or born_ns <= row.ctime_ns


def attributes_of(status: os.stat_result) -> Attributes:
    """Return the attributes that are uploaded with a file."""
    return Attributes(
        stored_ns(status.st_mtime_ns), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    )


def by_depth(directories: Iterable[bytes]) -> list[list[bytes]]:
    """Group directories by depth, upper ones first. Directories of one depth are independent, and share one flush of
    the disk."""
    levels: dict[int, list[bytes]] = {}
    for path in directories:
        levels.setdefault(path.count(b"/"), []).append(path)
    return [levels[depth] for depth in sorted(levels)]
