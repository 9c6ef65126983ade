"""A little room beside the disks, for what is read while none of them takes it: full of what can't go, or too small.

It is a volume like the others, so every door reads it as it reads a cache file. It lies in the run folder, which is in
memory as a rule, or in /dev/shm where that is on a disk of the cache; it is small, nothing stays in it for long, and
nothing of it is used by the next node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence

from headrace.store.index import Index
from headrace.store.volume import SPILL, Volume

SPILL_BYTES_MAX, SPILL_BYTES_MIN = 64 << 20, 8 << 20
_MEMORY = "/dev/shm"
_META = b"spill"


def open_spill(folder: str, name: str, disks: Sequence[Volume]) -> Volume | None:
    """Not made before it is used (`Volume.open`); what a node that was killed left of it is gone. folder: where it
    should be. None: there is no room for it anywhere but on the disks."""
    devices = {os.stat(disk.folder).st_dev for disk in disks}
    for place in (folder, f"{_MEMORY}/headrace-{os.geteuid()}"):
        with contextlib.suppress(OSError):
            if place != folder:
                os.makedirs(place, mode=0o700, exist_ok=True)
            found = os.lstat(place)
            room = os.statvfs(place)
            capacity_bytes = min(SPILL_BYTES_MAX, room.f_bavail * room.f_frsize // 2)
            is_ours = found.st_uid == os.geteuid() and not found.st_mode & 0o022
            if found.st_dev in devices or not is_ours or capacity_bytes < SPILL_BYTES_MIN:
                continue
            shutil.rmtree(f"{place}/{name}.spill", ignore_errors=True)
            return Volume(len(disks), f"{place}/{name}.spill", capacity_bytes, SPILL)
    return None


def note_spilled(index: Index, volume: Volume) -> None:
    """Before the first record of a file there: whoever finds it has records to forget."""
    volume.open()
    index.put_meta(_META, volume.number.to_bytes(2, "little"))


def forget_spilled(index: Index) -> None:
    """What the index says of files that lay there."""
    number = index.meta(_META)
    if not number:
        return
    volume = int.from_bytes(number, "little")
    gone = [cached.id for cached in index.cached_files() if cached.volume == volume]
    with index.batch():
        for id in gone:
            index.drop_cached(id)
        index.put_meta(_META, b"")


def remove_spill(volume: Volume) -> None:
    volume.close()
    shutil.rmtree(volume.folder, ignore_errors=True)
    if volume.folder.startswith(_MEMORY):
        with contextlib.suppress(OSError):  # other nodes of this user have theirs there
            os.rmdir(os.path.dirname(volume.folder))


def close_volumes(disks: Iterable[Volume], spill: Volume | None) -> None:
    """Close the disks; remove the spill."""
    for volume in disks:
        volume.close()
    if spill is not None:
        remove_spill(spill)
