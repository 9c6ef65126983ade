"""Read the kernel's table of mounts. It touches no file system, so it can't hang with a dead one."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_ESCAPED = re.compile(rb"\\([0-7]{3})")
"""Matches the kernel's escapes of spaces and similar characters."""


class MountTableRow(NamedTuple):
    """Holds a row of mountinfo (proc(5)). device: "major:minor". root: the path on the device. kind: of file system.
    options: of the file system, not of the mount. id: of the mount. parent: the id of the mount that it is on."""

    mountpoint: str
    device: str
    root: str
    kind: str
    source: str
    options: tuple[str, ...]
    id: int = 0
    parent: int = 0


def mount_table(pid: int | None = None) -> list[MountTableRow]:
    """Return the mounts that a process sees, in the order of their making. None: this process. Raises OSError."""
    with open(f"/proc/{pid or 'self'}/mountinfo", "rb") as file:
        return [_row(line) for line in file]


def mounted_at(mountpoint: str) -> MountTableRow | None:
    """Return the topmost mount at a path, or None. One that was moved beneath another one comes later in the table."""
    rows = [row for row in mount_table() if row.mountpoint == mountpoint]
    covered = {row.parent for row in rows if row.parent != row.id}  # the root of all mounts is on itself
    return next((row for row in reversed(rows) if row.id not in covered), None)


def mount_id(descriptor: int) -> int:
    """Return the id of the mount that an open file is on. Raises OSError."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))


def _row(line: bytes) -> MountTableRow:
    left, _, right = line.rstrip(b"\n").partition(b" - ")
    words = [*left.split(b" ")[:5], *right.split(b" ")[:3]]
    if b"\\" in line:
        words = [_ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), word) for word in words]
    id, parent, device, root, mountpoint, kind, source, options = map(os.fsdecode, words)
    return MountTableRow(
        mountpoint, device, root, kind, source, tuple(options.split(",")), int(id), int(parent)
    )
