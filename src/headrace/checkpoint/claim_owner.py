"""Decide whether the owner of a claim lives, also for a claim of another host, or of another boot of this host.

An owner on this host holds a lock on its claim. This host cannot see whether another host's owner lives. The times of
such a claim are from other clocks, which may jump. The first process that checks the claim therefore notes the time of
the boot clock, which no user can set. The claim is abandoned when it has not changed for a day since then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable

from headrace.base import boot_clock
from headrace.base.boot_clock import boot_id
from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointNoSpaceError,
    CorruptCheckpointError,
    PathNotFoundError,
)
from headrace.checkpoint import layout
from headrace.checkpoint.storage import CheckpointStorage

ABANDONED_AFTER_S = 24 * 3600.0
"""Seconds without a change after which a claim is abandoned."""
_NOTE_BYTES_MAX = 200
"""Most bytes that are read of a note."""


def write_claim(fd: int, data: bytes) -> None:
    """Lock a claim for this process, and write the boot of this host and `data`."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, boot_id().encode() + b"\n" + data)


def is_owner_alive(storage: CheckpointStorage, name: str, fd: int, state: Callable[[], str]) -> bool:
    """Return whether the owner of the claim that is open as `fd` lives, as far as this host knows. state: called for a
    claim of another boot; its result is that of `is_abandoned`."""
    boot, newline, _ = os.pread(fd, 64, 0).partition(b"\n")
    if newline and boot != boot_id().encode():
        return not is_abandoned(storage, name, state())
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def is_abandoned(storage: CheckpointStorage, name: str, state: str) -> bool:
    """Return whether the claim has not changed for a day; the first call notes the time.

    state: differs after each write of the claim. If the note cannot be written, the claim is never abandoned.
    """
    note = layout.sighting_name(name, boot_id())
    try:
        seen_s, _, noted_state = (
            storage.read(note, bytes_max=_NOTE_BYTES_MAX).decode("ascii", "replace").partition(" ")
        )
        if noted_state == state and seen_s.isdigit():
            return boot_clock.now_s() - int(seen_s) >= ABANDONED_AFTER_S
        storage.remove(note)
    except (PathNotFoundError, CorruptCheckpointError):
        pass
    # another process may have written the note meanwhile
    with contextlib.suppress(CheckpointFailedError, CheckpointNoSpaceError):
        writer = storage.create(note)
        try:
            writer.write(memoryview(f"{int(boot_clock.now_s())} {state}".encode()), 0)
        finally:
            writer.close()
    return False
