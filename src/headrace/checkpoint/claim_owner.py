"""Decide whether the owner of a claim lives, also of a claim of another host or of another boot of this host.

An owner on this host holds a lock on its claim. This host cannot see whether another host's owner lives, and the times
of its claim come from other clocks, which may jump. So the first process that looks at the claim notes the time of the
boot clock, which nobody sets. The claim is abandoned when it has been there, unchanged, for a day.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable

from headrace.base import boot_clock
from headrace.base.boot_clock import boot_id
from headrace.base.errors import CheckpointFailedError, CheckpointNoSpaceError, PathNotFoundError
from headrace.checkpoint import layout
from headrace.checkpoint.storage import CheckpointStorage

ABANDONED_AFTER_S = 24 * 3600.0
_NOTE_BYTES_MAX = 200


def write_claim(fd: int, data: bytes) -> None:
    """Lock a claim for this process, and write the boot of this host and `data`."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, boot_id().encode() + b"\n" + data)


def is_owner_alive(storage: CheckpointStorage, name: str, fd: int, state: Callable[[], str]) -> bool:
    """Return whether the owner of the claim that is open as `fd` lives, as far as this host knows. state: as of
    `is_abandoned`; it is called for a claim of another boot."""
    boot, newline, _ = os.pread(fd, 64, 0).partition(b"\n")
    if newline and boot != boot_id().encode():
        return not is_abandoned(storage, name, state())
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def is_abandoned(storage: CheckpointStorage, name: str, state: str) -> bool:
    """Return whether the claim has been unchanged for a day; the first call notes the time.

    state: differs when the claim is written anew. Where no note can be written, no claim is ever abandoned.
    """
    note = layout.sighting_name(name, boot_id())
    try:
        seen_s, _, noted_state = (
            storage.read(note, bytes_max=_NOTE_BYTES_MAX).decode("ascii", "replace").partition(" ")
        )
        if noted_state == state and seen_s.isdigit():
            return boot_clock.now_s() - int(seen_s) >= ABANDONED_AFTER_S
        storage.remove(note)
    except PathNotFoundError:
        pass
    # or another process has just noted it
    with contextlib.suppress(CheckpointFailedError, CheckpointNoSpaceError):
        writer = storage.create(note)
        try:
            writer.write(memoryview(f"{int(boot_clock.now_s())} {state}".encode()), 0)
        finally:
            writer.close()
    return False
