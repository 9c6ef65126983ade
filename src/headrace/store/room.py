"""Reserve space on the volumes for the index, and choose the volume of a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from headrace.base.errors import HeadraceError, NoSpaceError
from headrace.base.private_folder import make_private
from headrace.overlay.reserve import Reserve
from headrace.store.usage import allocated_bytes
from headrace.store.volume import Volume

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
        if os.stat(path).st_blocks * 512 >= used_bytes + ahead_bytes // 2:
            return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        reserve.allocate(fd, used_bytes + ahead_bytes)
    finally:
        os.close(fd)


def emptiest_volume(volumes: Sequence[Volume], size_bytes: int, *, high: float) -> Volume | None:
    """Return the emptiest volume with space for a file below the high watermark, in the first tier that has one. None:
    something must be evicted."""
    need = allocated_bytes(size_bytes)
    roomy = [
        v for v in volumes if v.used_bytes + need <= high * v.capacity_bytes and v.short_on_disk(need) <= 0
    ]
    tier = (v for v in roomy if v.tier == roomy[0].tier)
    return max(tier, key=lambda v: v.capacity_bytes - v.used_bytes, default=None)


def choose_volume(
    volumes: Sequence[Volume], size_bytes: int, *, high: float, make_room: Callable[[Volume, int], None]
) -> Volume:
    """Return the volume for a file of that size: the emptiest one with space below the high watermark, in the first
    tier that has one. Otherwise the volume where the least must be evicted. A volume to which no more is to be written
    today is chosen only if no other one can have space. Raises NoSpaceError."""
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
