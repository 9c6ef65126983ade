"""Describe a path as Hadoop's FileStatus."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from typing import Any

from headrace.base.model import Entry
from headrace.overlay.merged_view import FileStat
from headrace.vfs.file_stat import is_directory

BLOCK_BYTES = 128 << 20
"""Default block size of HDFS, by which clients split files into tasks. The gateway stores nothing in such blocks."""
FILE_MODE, DIRECTORY_MODE = 0o444, 0o555
"""Modes of files and directories that only the origin has, as on a mount; plus 0200 if this node can write."""


def file_status(file_stat: FileStat, name: bytes, *, writable: bool) -> dict[str, Any]:
    """Return the FileStatus of a path; `name` is "" for the requested one. `writable`: this node can write
    something."""
    is_dir = is_directory(file_stat)
    owner, group, mode = _owner_of(file_stat, is_dir=is_dir, writable=writable)
    is_entry = isinstance(file_stat, Entry)
    size = file_stat.version.size_bytes if isinstance(file_stat, Entry) else file_stat.st_size
    return {
        "accessTime": 0 if is_entry else int(file_stat.st_atime * 1000),  # type: ignore[union-attr]
        "blockSize": 0 if is_dir else BLOCK_BYTES,
        "fileId": int(file_stat.id) if isinstance(file_stat, Entry) else file_stat.st_ino,
        "group": group,
        "length": 0 if is_dir else size,
        "modificationTime": max(0, mtime_ns(file_stat) // 1_000_000),
        "owner": owner,
        "pathSuffix": name.decode("utf-8", "replace"),
        "permission": f"{mode:o}",
        "replication": 0 if is_dir else 1,
        "storagePolicy": 0,
        "type": "DIRECTORY" if is_dir else "FILE",
    }


def link_status(link_stat: os.stat_result, name: bytes, target: bytes) -> dict[str, Any]:
    """Return the FileStatus of a link that is requested itself, or whose target is no path of the namespace."""
    status = file_status(link_stat, name, writable=True)
    return {**status, "blockSize": 0, "type": "SYMLINK", "symlink": target.decode("utf-8", "replace")}


def mtime_ns(file_stat: FileStat) -> int:
    return file_stat.mtime_ns if isinstance(file_stat, Entry) else file_stat.st_mtime_ns


def is_link(file_stat: FileStat | None) -> bool:
    return isinstance(file_stat, os.stat_result) and stat.S_ISLNK(file_stat.st_mode)


def _owner_of(file_stat: FileStat, *, is_dir: bool, writable: bool) -> tuple[str, str, int]:
    if not isinstance(file_stat, Entry):
        mode = stat.S_IMODE(file_stat.st_mode) & 0o1777
        return user_name(file_stat.st_uid), group_name(file_stat.st_gid), mode
    attributes = file_stat.attributes
    if attributes is not None and attributes.mode is not None:
        return user_name(attributes.uid or 0), group_name(attributes.gid or 0), attributes.mode & 0o1777
    mode = (DIRECTORY_MODE if is_dir else FILE_MODE) | (0o200 if writable else 0)
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
