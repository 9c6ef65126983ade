"""Reserve space on the volumes for the index, and choose the volume of a file."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.base.errors import HeadraceError, NoSpaceError, StoreError
from headrace.base.private_folder import make_private
from headrace.base.sizes import disk_bytes
from headrace.overlay.reserve import Reserve
from headrace.store.usage import allocated_bytes
from headrace.store.volume import Volume

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_READERS_BYTES = 128 << 10
"""LMDB's table of readers: 1024 of 64 bytes each, and some more."""


def reserve_readers(index_folder: str, reserve: Reserve) -> None:
    """Allocate LMDB's table of readers. A reader of the index enters itself by a store to a mapping, which in a hole on
    a full disk would raise SIGBUS. Call it before LMDB opens the directory: closing a descriptor of the file releases
    LMDB's lock. Raises OSError."""
    reserve.spend(lambda: make_private(index_folder))
    _allocate(f"{index_folder}/lock.mdb", 0, _READERS_BYTES, reserve)


def keep_index_room(index_folder: str, reserve: Reserve) -> None:
    """Allocate blocks ahead, so that the index can grow by some commits on a full disk. Raises OSError."""
    path = f"{index_folder}/data.mdb"
    _allocate(path, os.stat(path).st_size, reserve.ahead_bytes, reserve)


def _allocate(path: str, used_bytes: int, ahead_bytes: int, reserve: Reserve) -> None:
    with contextlib.suppress(FileNotFoundError):
        if disk_bytes(os.stat(path)) >= used_bytes + ahead_bytes // 2:
            return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        reserve.allocate(fd, used_bytes + ahead_bytes)
    finally:
        os.close(fd)


def on_sound_disks(disks: Sequence[Volume], work: Callable[[], Result]) -> Result:
    """Run the work. Repeat it when a disk fails in it that did not fail before, if another one is left."""
    failing = _failing(disks)
    while True:
        try:
            return work()
        except StoreError as error:
            more = _failing(disks) - failing
            failing |= more
            if not more or len(failing) == len(disks):
                raise
            log.info(
                "a cache disk fails, another one is tried folders=%s error=%s",
                *([volume.folder for volume in disks if volume.number in more], error),
            )


def has_better_disk(volume: Volume, disks: Sequence[Volume]) -> bool:
    """Return whether a volume fails, and some disk does not."""
    return volume.is_failing and len(_failing(disks)) < len(disks)


def _failing(disks: Sequence[Volume]) -> set[int]:
    return {volume.number for volume in disks if volume.is_failing}


def emptiest_volume(volumes: Sequence[Volume], size_bytes: int, *, high: float) -> Volume | None:
    """Return the emptiest volume with space for a file below the high watermark, in the first tier that has one; never
    one that fails. None: something must be evicted."""
    need = allocated_bytes(size_bytes)
    roomy = [
        v
        for v in volumes
        if not v.is_failing
        if v.used_bytes + need <= high * v.capacity_bytes and _has_space(v, need)
    ]
    tier = (v for v in roomy if v.tier == roomy[0].tier)
    return max(tier, key=lambda v: v.capacity_bytes - v.used_bytes, default=None)


def _has_space(volume: Volume, need: int) -> bool:
    """Return whether the disk of a volume has so many bytes; False for one that fails."""
    try:
        return volume.short_on_disk(need) <= 0
    except StoreError:
        return False


def choose_volume(
    volumes: Sequence[Volume], size_bytes: int, *, high: float, make_room: Callable[[Volume, int], None]
) -> Volume:
    """Return the volume for a file of that size: the emptiest one with space below the high watermark, in the first
    tier that has one. Otherwise the volume where the least must be evicted. A volume to which no more is to be written
    today is chosen only if no other one can have space, and one that fails only if there is no other. Raises
    NoSpaceError."""
    volumes = [volume for volume in volumes if not volume.is_failing] or volumes
    unspent = [volume for volume in volumes if not volume.is_spent]
    if unspent and len(unspent) < len(volumes):
        with contextlib.suppress(NoSpaceError):
            return _choose(unspent, size_bytes, high, make_room)
    return _choose(volumes, size_bytes, high, make_room)


def _choose(
    volumes: Sequence[Volume], size_bytes: int, high: float, make_room: Callable[[Volume, int], None]
) -> Volume:
    need = allocated_bytes(size_bytes)
    emptiest = emptiest_volume(volumes, size_bytes, high=high)
    if emptiest is not None:
        return emptiest
    fitting = [volume for volume in volumes if need <= volume.capacity_bytes]
    if not fitting:
        raise NoSpaceError(
            f"a file of {size_bytes} bytes does not fit any cache volume", hint="give one more capacity"
        )
    problem: HeadraceError | None = None
    for volume in sorted(fitting, key=lambda v: v.used_bytes - v.capacity_bytes):
        try:
            make_room(volume, need)
            return volume
        except NoSpaceError as error:
            problem = error
    assert problem is not None
    raise problem
