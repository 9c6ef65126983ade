"""Say which cache a volume belongs to, and which of its volumes it is. The index, and the images of seals, name a cache
file by the number of its volume and its id alone. So a volume in the place of another one would give other bytes under
the same names, or none; and an empty directory in the place of a disk would fill the disk below.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Sequence

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import StoreError
from headrace.base.private_folder import private, unfollowed
from headrace.base.sync_folder import sync_folder

_FILE = "cache"
_ID = re.compile(r"[0-9a-f]{32}")
_OLD_RECORD = re.compile(rb"[0-9a-f]{32}\n?")
"""The record of earlier versions: the id of the cache alone."""
_RECORD_BYTES_MAX = 64 << 10
_NUMBERS = range(1 << 16)


class VolumeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold what a volume says of itself. cache: id of its cache. number: its place among the directories of the cache,
    from 0; None in a record of an earlier version. mountpoints: in the first volume: where the file systems of the
    others were mounted, by number; none of the root directory's."""

    cache: str
    number: int | None = None
    mountpoints: dict[int, str] = {}


def claim_volumes(folders: Sequence[str]) -> None:
    """Record in each volume which one it is. The first one names the cache. The caller holds their locks. Raises
    StoreError as `check_volumes` does."""
    check_volumes(folders)
    first = _read(folders[0])
    if first is None and len(folders) == 1:
        return
    # the number is another one only where the first directory of an earlier cache was left out
    cache = first.cache if first is not None and not first.number else secrets.token_hex(16)
    for number, folder in enumerate(folders):
        record = VolumeRecord(cache, number, {} if number else _mountpoints(folders))
        is_written = record == _read(folder) or _write(folder, record)
        if not is_written and not number and first is None:
            return  # the others would belong to a cache that nothing names


def check_volumes(folders: Sequence[str]) -> None:
    """Raise StoreError if a volume belongs to another cache than the first one, has another place in it, or is an empty
    directory where a disk was mounted. A volume of an older version, or an empty one, belongs to none. A cache with one
    volume is not looked at. Changes nothing."""
    if len(folders) == 1:
        return
    first, *others = [_read(folder) for folder in folders]
    if first is not None:
        _check_place(folders[0], first, 0)
    for number, (folder, record) in enumerate(zip(folders[1:], others, strict=True), 1):
        if first is None and record is not None:
            raise StoreError(
                f"cache volume {folders[0]}",
                why=f"it is of no cache, and {folder} is of a cache with another first directory",
                hint=f"mount the disk of the first directory, or empty {folder}",
            )
        if first is not None and record is None:
            _check_mounted(folder, first.mountpoints.get(number, ""))
        elif first is not None and record is not None:
            if record.cache != first.cache:
                raise StoreError(
                    f"cache volume {folder}",
                    why=f"it belongs to another cache than {folders[0]}",
                    hint="mount the right disk there, or empty the directory",
                )
            _check_place(folder, record, number)


def _check_place(folder: str, record: VolumeRecord, number: int) -> None:
    if record.number not in (None, number):
        raise StoreError(
            f"cache volume {folder}",
            why=f"it is directory {record.number} of its cache, counted from 0, and is given as directory {number}",
            hint="give the directories in their former order, each with its disk, and new ones last"
            + ("; or empty this one" if record.number else ""),
        )


def _check_mounted(folder: str, mountpoint: str) -> None:
    """Raise StoreError if the file system is gone that a volume without a record was on."""
    is_there = (
        os.path.commonpath([mountpoint, os.path.realpath(folder)]) == mountpoint if mountpoint else False
    )
    if is_there and not os.path.ismount(mountpoint):
        raise StoreError(
            f"cache volume {folder}",
            why=f"its disk is missing: nothing is mounted at {mountpoint}",
            hint="mount the disk, or an empty new one, or leave the directory out and empty those after it",
        )


def _mountpoints(folders: Sequence[str]) -> dict[int, str]:
    """Return where the file systems of all volumes but the first one are mounted."""
    mountpoints: dict[int, str] = {}
    for number, folder in enumerate(folders[1:], 1):
        path = os.path.realpath(folder)
        while not os.path.ismount(path):
            path = os.path.dirname(path)
        if path != "/" and path.isprintable():  # JSON has no text for other bytes than UTF-8
            mountpoints[number] = path
    return mountpoints


def has_several_volumes(folder: str) -> bool:
    """Return whether the cache of a volume has, or had, other volumes. Raises StoreError."""
    return _read(folder) is not None


def decode_record(body: bytes) -> VolumeRecord:
    """Decode a record. Raises DecodeError for anything else."""
    if _OLD_RECORD.fullmatch(body):
        return VolumeRecord(body.strip().decode())
    if len(body) > _RECORD_BYTES_MAX:
        raise msgspec.DecodeError("it is too long")
    record = decode_json(body, VolumeRecord)
    numbers = [*record.mountpoints, *(() if record.number is None else (record.number,))]
    if not _ID.fullmatch(record.cache) or not all(number in _NUMBERS for number in numbers):
        raise msgspec.DecodeError("an id or a number is out of range")
    if not all(path == os.path.abspath(path) and "\0" not in path for path in record.mountpoints.values()):
        raise msgspec.DecodeError("a mountpoint is no absolute path")
    return record


def _read(folder: str) -> VolumeRecord | None:
    """Return the record of a volume; None if it has none, or a damaged one."""
    try:
        with open(f"{folder}/{_FILE}", "rb", opener=unfollowed) as file:
            return decode_record(file.read(_RECORD_BYTES_MAX + 1))
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    except OSError as error:
        hint = "give a directory of this user with --cache"
        raise StoreError(f"cache volume {folder}", why=error.strerror or str(error), hint=hint) from error


def _write(folder: str, record: VolumeRecord) -> bool:
    """Write the record of a volume durably. Return False on a full disk, so that a node starts there."""
    new = f"{folder}/{_FILE}.new"
    try:
        with open(new, "wb", opener=private) as out:
            out.write(msgspec.json.encode(record) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, f"{folder}/{_FILE}")
        sync_folder(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return False
        raise StoreError(f"cache volume {folder}", why=error.strerror or str(error)) from error
    return True
