"""Describe to other nodes a name that was written on a node and is not at its origin yet.

Such a file has a version like any other. Its token contains the id of the node that wrote it, and the file's state
there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from headrace.base.file_times import TIME_NS_MAX, TIME_NS_MIN, stored_ns
from headrace.base.model import Version
from headrace.base.namespace_path import check_name

PREFIX = "written-by/"
"""Prefix of the token of a pending version. No ETag begins like this, because ETags have quotes."""


class EntryState(IntEnum):
    """Name the state of a name at its writer."""

    ORIGIN = 0
    """The writer has nothing that the origin lacks."""
    HIDDEN = 1
    """The name was removed."""
    FILE = 2
    DIRECTORY = 3


class PendingEntry(msgspec.Struct, frozen=True, array_like=True):
    """Describe a pending name. means: an EntryState. The other fields describe a file, as it is on its writer."""

    name: bytes
    means: int
    size_bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    ctime_ns: int = 0

    def __post_init__(self) -> None:
        if self.name:  # the root has none
            check_name(self.name)
        EntryState(self.means)
        if not 0 <= self.size_bytes < 1 << 63 or not 0 <= self.inode < 1 << 64:
            raise ValueError(f"{self.size_bytes} bytes, inode {self.inode}")
        for time_ns in (self.mtime_ns, self.ctime_ns):
            if not TIME_NS_MIN <= time_ns <= TIME_NS_MAX:
                raise ValueError(f"a time of {time_ns} ns")

    @classmethod
    def of_file(cls, name: bytes, status: os.stat_result) -> PendingEntry:
        mtime_ns = stored_ns(status.st_mtime_ns)
        return cls(name, EntryState.FILE, status.st_size, mtime_ns, status.st_ino, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class PendingVersion:
    """Identify the version of a file that no origin has yet. writer: id of the node. inode, ctime_ns: those of the file
    there."""

    writer: str
    inode: int
    ctime_ns: int

    @property
    def token(self) -> str:
        return f"{PREFIX}{self.writer}/{self.put_id}"

    @property
    def put_id(self) -> str:
        """Return the id that the object of this file gets from its writer, if the origin stores it."""
        return f"{self.inode:x}-{self.ctime_ns:x}"

    @classmethod
    def parse(cls, token: str) -> PendingVersion | None:
        """Parse a token; None for the token of an origin, or an invalid one."""
        if not token.startswith(PREFIX):
            return None
        writer, _, state = token.removeprefix(PREFIX).rpartition("/")
        inode, _, ctime = state.partition("-")
        try:
            version = cls(writer, int(inode, 16), int(ctime, 16))
        except ValueError:
            return None
        return version if 0 <= version.inode < 1 << 63 and abs(version.ctime_ns) < 1 << 63 else None


def is_pending(version: Version | None) -> bool:
    """Return whether no origin has a version yet."""
    return version is not None and version.token.startswith(PREFIX)
