"""What a path of the upper layer needs, so that its origin has the same."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from headrace.base.beneath import SafePath
from headrace.base.model import Attributes
from headrace.overlay.upper import base_version, is_removed, is_whiteout
from headrace.writeback.sync_journal import JournalRecord


class SyncAction(IntEnum):
    """What is to be done for a path, in this order."""

    CLEAR = 1  # a file at the origin, in whose place there is a directory now
    MAKE = 2
    PUT = 3
    REMOVE = 4
    REMOVE_DIRECTORY = 5


@dataclass(slots=True)
class WriteBackCounts:
    """Of what was done since the start."""

    files_persisted: int = 0
    bytes_persisted: int = 0
    removed: int = 0
    failures: int = 0


def action_for(
    path: bytes, at: SafePath, found: os.stat_result, row: JournalRecord | None, *, is_top: bool
) -> SyncAction | None:
    """None: nothing. row: what was noted of the path. is_top: a folder that is there because of the settings."""
    if is_whiteout(found):
        return SyncAction.REMOVE
    if stat.S_ISDIR(found.st_mode):
        if replaces_file(path, at, row):
            return SyncAction.CLEAR
        if is_removed(at):
            return SyncAction.REMOVE_DIRECTORY
        made = row is not None and row.inode == found.st_ino and not row.begun
        return None if made or is_top else SyncAction.MAKE
    if not stat.S_ISREG(found.st_mode):
        was_there = replaces_file(path, at, row) or (row is not None and row.is_directory)
        return SyncAction.CLEAR if was_there else None
    return None if row is not None and row.describes(found) else SyncAction.PUT


def replaces_file(path: bytes, at: SafePath, row: JournalRecord | None) -> bool:
    """Whether the origin has a file, or may have one, where something that is no file is now."""
    return (row is not None and row.is_file) or base_version(at, path) is not None


def size_of(at: SafePath) -> int:
    """Of a file; else 0."""
    found = at.seen()
    return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else 0


def attributes_of(found: os.stat_result) -> Attributes:
    """As they are put with a file."""
    return Attributes(found.st_mtime_ns, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def by_depth(folders: Iterable[bytes]) -> list[list[bytes]]:
    """Those above others first. Of one depth none is in another one's way, and all share a flush of the disk."""
    levels: dict[int, list[bytes]] = {}
    for path in folders:
        levels.setdefault(path.count(b"/"), []).append(path)
    return [levels[depth] for depth in sorted(levels)]
