"""Modes that would give rights on the host: files with set-user-id and set-group-id bits, and devices.

The layer lies on a file system where these mean something; the mount shows them on one where they do not (nosuid,
nodev). So on the disk there are none: a file keeps its bits in an attribute, and a device is a fifo that has its kind
and number there. A sticky bit, which Linux gives no meaning but on directories, says that there is such an attribute:
who looks at any other file pays nothing for it. Directories keep their bits: they give nobody rights.
"""

from __future__ import annotations

import os
import stat
import struct

from headrace.base.beneath import SafePath

ATTRIBUTE = "trusted.headrace.mode"
_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_RECORD = struct.Struct("<IQ")  # st_mode, st_rdev
_FIELDS = 10
"""Of os.stat_result, which are told by their places; the others by name."""


def give_mode(at: SafePath | bytes | int, mode: int) -> None:
    """chmod(2). at: in the layer, or the path of a `Pin`, or a descriptor. mode: without a kind."""
    if isinstance(at, SafePath):
        with at.pinned() as pin:
            give_mode(pin.at, mode)
        return
    found = os.stat(at).st_mode
    kind, number = _record_of(at) if found & stat.S_ISVTX and not stat.S_ISDIR(found) else (0, 0)
    is_device = stat.S_ISFIFO(found) and kind != 0
    if is_device or (stat.S_ISREG(found) and mode & _SPECIAL):
        shown = stat.S_IFMT(kind) if is_device else stat.S_IFREG
        os.setxattr(at, ATTRIBUTE, _RECORD.pack(shown | mode, number))
        mode = mode & 0o777 | stat.S_ISVTX  # last: without it the attribute means nothing
    os.chmod(at, mode)


def make_device(at: SafePath, mode: int, device: int) -> None:
    """What stands for a device on the disk; it is nobody's yet."""
    at.mknod(stat.S_IFIFO, 0)
    at.setxattr(ATTRIBUTE, _RECORD.pack(mode, device))
    at.chmod(mode & 0o777 | stat.S_ISVTX)


def as_given(found: os.stat_result, at: SafePath | bytes | int) -> os.stat_result:
    """What was found there, with the mode that its user gave. at: as of `give_mode`."""
    mode = found.st_mode
    if not mode & stat.S_ISVTX or stat.S_ISDIR(mode):
        return found
    kind, number = _record_of(at)
    if not kind:
        return found
    values = list(found[:_FIELDS])
    values[0] = stat.S_IFMT(kind) | kind & _SPECIAL | mode & 0o777
    named = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_blksize", "st_blocks")
    return os.stat_result(values, {**{name: getattr(found, name) for name in named}, "st_rdev": number})


def _record_of(at: SafePath | bytes | int) -> tuple[int, int]:
    """0, 0 where there is none."""
    try:
        value = at.getxattr(ATTRIBUTE) if isinstance(at, SafePath) else os.getxattr(at, ATTRIBUTE)
        kind, number = _RECORD.unpack(value)
    except (OSError, struct.error):
        return 0, 0
    return kind, number
