"""Describe the entry of a path, from the index or from attributes of a file of the upper layer."""

from __future__ import annotations

import os
import stat as modes
from typing import Literal

import msgspec

from headrace.base.file_times import stored_ns
from headrace.base.model import Entry, Kind
from headrace.overlay.merged_view import FileStat

Kinds = Literal["file", "directory", "link", "other"]


class Stat(msgspec.Struct, frozen=True):
    """Describes a path. mtime_ns: 0 if the origin has no time. version: differs if the bytes differ; "" for anything
    but a file."""

    path: str
    kind: Kinds
    size_bytes: int
    mtime_ns: int
    version: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"


def attributes_of_row(
    mode: int, id: int, size_bytes: int, mtime_ns: int, uid: int = 0, gid: int = 0
) -> os.stat_result:
    """Return the attributes of a path that another process described. Its three times are the same."""
    seconds = mtime_ns // 1_000_000_000
    values = (mode, id, 0, 1, uid, gid, size_bytes, seconds, seconds, seconds)
    return os.stat_result(values, {"st_mtime_ns": mtime_ns, "st_ctime_ns": mtime_ns})


def stat_of(path: str, stat: FileStat) -> Stat:
    if isinstance(stat, Entry):
        is_dir = stat.kind is Kind.DIRECTORY
        version = stat.version
        token = "" if is_dir else version_text(stat)
        return Stat(path, "directory" if is_dir else "file", version.size_bytes, version.mtime_ns, token)
    kinds: dict[int, Kinds] = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}
    kind = kinds.get(modes.S_IFMT(stat.st_mode), "other")
    token = version_text(stat) if kind == "file" else ""
    size_bytes = stat.st_size if kind != "directory" else 0
    return Stat(path, kind, size_bytes, stored_ns(stat.st_mtime_ns), token)


def is_directory(stat: FileStat) -> bool:
    return stat.kind is Kind.DIRECTORY if isinstance(stat, Entry) else modes.S_ISDIR(stat.st_mode)


def version_text(stat: FileStat) -> str:
    """Return a text that changes when the bytes of a file may have changed."""
    if isinstance(stat, Entry):
        return stat.version.text
    return f"{stat.st_ino}-{stat.st_size}-{stat.st_ctime_ns}"
