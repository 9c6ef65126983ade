"""What is at a path, in the words of Hadoop's FileStatus."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from typing import Any

from headrace.base.model import Entry
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.vfs_reader import is_directory

BLOCK_BYTES = 128 << 20
"""What HDFS takes for a block by default; clients cut files into tasks by it. Nothing here is stored in such blocks."""
FILE_MODE, DIRECTORY_MODE = 0o444, 0o555
"""Of what only its origin has, as on a mount; with 0200 more where something can be written."""


def file_status(found: FileStat, name: bytes, *, writable: bool) -> dict[str, Any]:
    """name: "" for the path that was asked for. writable: whether anything can be written by this node."""
    folder = is_directory(found)
    owner, group, mode = _owner_of(found, folder=folder, writable=writable)
    is_entry = isinstance(found, Entry)
    size = 0 if folder else found.version.size_bytes if isinstance(found, Entry) else found.st_size
    return {
        "accessTime": 0 if is_entry else int(found.st_atime * 1000),  # type: ignore[union-attr]
        "blockSize": 0 if folder else BLOCK_BYTES,
        "fileId": int(found.id) if isinstance(found, Entry) else found.st_ino,
        "group": group,
        "length": size,
        "modificationTime": max(0, mtime_ns(found) // 1_000_000),
        "owner": owner,
        "pathSuffix": name.decode("utf-8", "replace"),
        "permission": f"{mode:o}",
        "replication": 0 if folder else 1,
        "storagePolicy": 0,
        "type": "DIRECTORY" if folder else "FILE",
    }


def link_status(found: os.stat_result, name: bytes, target: bytes) -> dict[str, Any]:
    """Of a link that leads to nothing that can be named here, or that was asked for itself."""
    about = file_status(found, name, writable=True)
    return {**about, "blockSize": 0, "type": "SYMLINK", "symlink": target.decode("utf-8", "replace")}


def mtime_ns(found: FileStat) -> int:
    return found.mtime_ns if isinstance(found, Entry) else found.st_mtime_ns


def is_link(found: FileStat | None) -> bool:
    return isinstance(found, os.stat_result) and stat.S_ISLNK(found.st_mode)


def _owner_of(found: FileStat, *, folder: bool, writable: bool) -> tuple[str, str, int]:
    if not isinstance(found, Entry):
        return user_name(found.st_uid), group_name(found.st_gid), stat.S_IMODE(found.st_mode) & 0o1777
    known = found.attributes
    if known is not None and known.mode is not None:
        return user_name(known.uid or 0), group_name(known.gid or 0), known.mode & 0o1777
    mode = (DIRECTORY_MODE if folder else FILE_MODE) | (0o200 if writable else 0)
    return user_name(os.geteuid()), group_name(os.getegid()), mode


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=1024)
def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
