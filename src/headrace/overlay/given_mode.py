"""Store modes that would grant rights on the host: files with set-user-id and set-group-id bits, and devices.

The upper layer is on a file system that honours these; the mount shows them on one that does not (nosuid, nodev). They
are therefore not on the disk: a file keeps its bits in an attribute, and a device is a fifo with its type and number
there. A sticky bit means nothing to Linux except on directories. It marks files that have the attribute, so other files
cost no extra call. Directories keep their bits, which grant no rights.

In the layer of a user without rights, that user must be able to read and write everything. A mode that would forbid it
is in the attribute as well, also that of a directory. A directory's sticky bit is there, too, because it marks the
attribute on disk. Set-id bits of files are dropped in such a layer, and it has no devices.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct

from headrace.base.beneath import SafePath
from headrace.base.model import Attributes
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import mark_value

_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_RECORD = struct.Struct("<IQ")  # st_mode, st_rdev
_FIELDS = 10
"""Number of fields of os.stat_result that are set by position; the others are set by name."""


def give_mode(file: SafePath | bytes | int, mode: int) -> None:
    """Set the mode of a file, as chmod(2) does. file: in the layer, or the path of a `Pin`, or a descriptor. mode:
    without the type bits."""
    if isinstance(file, SafePath):
        with file.pinned() as pin:
            give_mode(pin.proc_path, mode)
        return
    mode_on_disk = os.stat(file).st_mode
    if MARKS.single_owner:
        _give_mode_of_user(file, mode_on_disk, mode)
        return
    type_and_mode, number = (
        _record_of(file) if mode_on_disk & stat.S_ISVTX and not stat.S_ISDIR(mode_on_disk) else (0, 0)
    )
    is_device = stat.S_ISFIFO(mode_on_disk) and type_and_mode != 0
    if is_device or (stat.S_ISREG(mode_on_disk) and mode & _SPECIAL):
        file_type = stat.S_IFMT(type_and_mode) if is_device else stat.S_IFREG
        os.setxattr(file, MARKS.mode, _RECORD.pack(file_type | mode, number))
        mode = mode & 0o777 | stat.S_ISVTX  # last: without it the attribute means nothing
    os.chmod(file, mode)


def _give_mode_of_user(file: bytes | int, mode_on_disk: int, mode: int) -> None:
    is_directory = stat.S_ISDIR(mode_on_disk)
    needed, set_ids = (0o700, mode & stat.S_ISGID) if is_directory else (0o600, 0)
    if not is_directory:
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    is_other_on_disk = mode & (needed | stat.S_ISVTX) != needed
    if is_other_on_disk and (is_directory or stat.S_ISREG(mode_on_disk)):
        os.setxattr(file, MARKS.mode, _RECORD.pack(stat.S_IFMT(mode_on_disk) | mode, 0))
        mode = needed | set_ids | stat.S_ISVTX  # last: without it the attribute means nothing
    os.chmod(file, mode)


def make_device(path: SafePath, mode: int, device: int) -> None:
    """Create the fifo that stands for a device on disk; the caller then sets its owner."""
    path.mknod(stat.S_IFIFO, 0)
    path.setxattr(MARKS.mode, _RECORD.pack(mode, device))
    path.chmod(mode & 0o777 | stat.S_ISVTX)


def as_given(status: os.stat_result, file: SafePath | bytes | int) -> os.stat_result:
    """Return the status of a file with the mode that its user set. file: as in `give_mode`."""
    mode = status.st_mode
    if not mode & stat.S_ISVTX or (stat.S_ISDIR(mode) and not MARKS.single_owner):
        return status
    type_and_mode, number = _record_of(file)
    if not type_and_mode:
        return status
    values = list(status[:_FIELDS])
    values[0] = type_and_mode if MARKS.single_owner else type_and_mode & ~0o777 | mode & 0o777
    named = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_blksize", "st_blocks")
    return os.stat_result(values, {**{name: getattr(status, name) for name in named}, "st_rdev": number})


def _record_of(file: SafePath | bytes | int) -> tuple[int, int]:
    """Return the type with the mode, and the device number; 0, 0 if the file has no such attribute. Raises OSError if
    that is not known now: a device would become a fifo."""
    value = mark_value(file, MARKS.mode)
    try:
        type_and_mode, number = (0, 0) if value is None else _RECORD.unpack(value)
    except struct.error:
        return 0, 0
    return type_and_mode, number


def apply_attributes(file: int | SafePath, attributes: Attributes | None) -> None:
    """Set the mode and owner that a file had when this node uploaded it, if they are known."""
    if attributes is None or attributes.mode is None:
        return
    uid, gid = (
        -1 if attributes.uid is None else attributes.uid,
        -1 if attributes.gid is None else attributes.gid,
    )
    with contextlib.suppress(PermissionError):  # another user's file, and this process is not root
        os.fchown(file, uid, gid) if isinstance(file, int) else file.chown(uid, gid)
    give_mode(file, attributes.mode)


def has_other_owner(attributes: Attributes | None) -> bool:
    """Return whether these attributes name an owner other than the user of this process."""
    return attributes is not None and attributes.uid not in (None, os.geteuid())
