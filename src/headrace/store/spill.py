"""Cache a few files outside the disks while no disk accepts any: each is full of files that can't be evicted, or too
small.

The spill is a volume like the others, so every interface reads it like cache files. It is in the run directory, which
is normally in memory, or in /dev/shm if that directory is on a disk of the cache. It is small, files stay there only
for a short time, and the next node uses none of them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence

from headrace.base.errors import StoreBusyError
from headrace.store.index import Index
from headrace.store.volume import SPILL, Volume, take_lock

SPILL_BYTES_MAX, SPILL_BYTES_MIN = 64 << 20, 8 << 20
_META = b"spill"


def open_spill(directory: str, name: str, disks: Sequence[Volume]) -> Volume | None:
    """Return the volume, which is created at its first use (`Volume.open`), and delete the remains of a killed node.
    directory: the preferred place. None if only the disks have space."""
    devices = {os.stat(disk.folder).st_dev for disk in disks}
    for parent in (directory, _memory_directory()):
        with contextlib.suppress(OSError):
            if parent != directory:
                os.makedirs(parent, mode=0o700, exist_ok=True)
            status = os.lstat(parent)
            space = os.statvfs(parent)
            capacity_bytes = min(SPILL_BYTES_MAX, space.f_bavail * space.f_frsize // 2)
            if status.st_dev in devices or not _is_ours(status) or capacity_bytes < SPILL_BYTES_MIN:
                continue
            shutil.rmtree(f"{parent}/{name}.spill", ignore_errors=True)
            return Volume(len(disks), f"{parent}/{name}.spill", capacity_bytes, SPILL)
    return None


def remove_remains(directory: str, name: str) -> None:
    """Delete the spill of a node that was killed. directory, name: as in `open_spill`. In memory, a spill stays whose
    cache has a node with another run directory by now."""
    shutil.rmtree(f"{directory}/{name}.spill", ignore_errors=True)
    folder = f"{_memory_directory()}/{name}.spill"
    with contextlib.suppress(OSError, StoreBusyError):
        if _is_ours(os.lstat(_memory_directory())):
            lock_fd = take_lock(f"{folder}/lock", f"spill {folder}")
            _remove(folder)
            os.close(lock_fd)


def note_spilled(index: Index, volume: Volume) -> None:
    """Record the spill before the first record of a file there, so that the next node forgets those records."""
    volume.open()
    index.state.put(_META, volume.number.to_bytes(2, "little"))


def forget_spilled(index: Index) -> None:
    """Delete the records of files that were in the spill."""
    number = index.state.get(_META)
    if not number:
        return
    volume = int.from_bytes(number, "little")
    spilled = [cached.id for cached in index.cached_files() if cached.volume == volume]
    with index.batch():
        for id in spilled:
            index.drop_cached(id)
        index.state.put(_META, b"")


def remove_spill(volume: Volume) -> None:
    volume.close()
    _remove(volume.folder)


def close_volumes(disks: Iterable[Volume], spill: Volume | None) -> None:
    """Close the disks; remove the spill."""
    for volume in disks:
        volume.close()
    if spill is not None:
        remove_spill(spill)


def _memory_directory() -> str:
    """Return the directory in memory for the spills of this user's nodes."""
    return f"/dev/shm/headrace-{os.geteuid()}"


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _remove(folder: str) -> None:
    """Delete a spill, and the directory in memory if no other node of this user has its spill there."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.dirname(folder) == _memory_directory():
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(folder))
