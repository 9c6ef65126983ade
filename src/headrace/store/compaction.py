"""Replace the index by a copy without free pages, at the start of a node. This module handles files only; index.py
makes the copy.

LMDB never makes its file smaller. The copy is another file with the same contents. The checkpoint is a page of the file
and changes with it, so there are two renames: `recover` completes or undoes them wherever they were interrupted.
Clients open index files at any time. A lock on the directory prevents that they open the table of readers of one file
with the pages of the other.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.base import failpoint
from headrace.overlay.syscalls import sync_folder
from headrace.store.index_checkpoint import newest_meta, write_page

PATIENCE_S = 1.0
PAUSE_S = 0.005


def copy_path(folder: str) -> str:
    """Return the path of the copy of the data file."""
    return f"{folder}/compacted.new"


def settle_copy(folder: str, boot_id: str) -> None:
    """Make the copy durable, with a checkpoint of its own beside it. Raises OSError or CorruptIndexError."""
    fd = os.open(copy_path(folder), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(folder)
    write_page(_checkpoint_path(folder), boot_id, newest_meta(copy_path(folder)))
    sync_folder(folder)
    failpoint.hit("compact.copied")


def install(folder: str) -> None:
    """Put the copy in the place of the data file, which this process has closed. OSError, with nothing changed, if a
    client holds the lock too long."""
    with _locked(folder, fcntl.LOCK_EX, patience_s=PATIENCE_S):
        os.rename(copy_path(folder), f"{folder}/data.mdb")
        os.unlink(f"{folder}/lock.mdb")
    failpoint.hit("compact.swapped")
    sync_folder(folder)
    recover(folder)
    failpoint.hit("compact.installed")


def recover(folder: str) -> None:
    """Complete a compaction whose copy is in its place, and remove the remains of any other."""
    if os.path.exists(copy_path(folder)):
        with suppress(FileNotFoundError):
            # first: a checkpoint without a copy means that the copy is in its place
            os.unlink(_checkpoint_path(folder))
        sync_folder(folder)
        os.unlink(copy_path(folder))
    elif os.path.exists(_checkpoint_path(folder)):
        os.rename(_checkpoint_path(folder), f"{folder}/checkpoint")
        sync_folder(folder)


@contextmanager
def files_stay(folder: str) -> Iterator[None]:
    """Keep the data file and the table of readers unchanged within the context. Raises OSError if the directory does
    not exist."""
    with _locked(folder, fcntl.LOCK_SH, patience_s=float("inf")):
        yield


@contextmanager
def _locked(folder: str, operation: int, *, patience_s: float) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    give_up_s = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(PAUSE_S)
        yield
    finally:
        os.close(fd)


def _checkpoint_path(folder: str) -> str:
    return f"{folder}/compacted-checkpoint.new"
