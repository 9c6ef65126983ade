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
from headrace.base.sync_folder import sync_folder
from headrace.store.index_checkpoint import newest_meta, write_page

PATIENCE_S = 1.0
PAUSE_S = 0.005


def copy_path(directory: str) -> str:
    """Return the path of the copy of the data file."""
    return f"{directory}/compacted.new"


def settle_copy(directory: str, boot_id: str) -> None:
    """Make the copy durable, with a checkpoint of its own beside it. Raises OSError or CorruptIndexError."""
    fd = os.open(copy_path(directory), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(directory)
    write_page(_checkpoint_path(directory), boot_id, newest_meta(copy_path(directory)))
    sync_folder(directory)
    failpoint.hit("compact.copied")


def install(directory: str) -> None:
    """Put the copy in the place of the data file, which this process has closed. OSError, with nothing changed, if a
    client holds the lock too long."""
    with _locked(directory, fcntl.LOCK_EX, patience_s=PATIENCE_S):
        os.rename(copy_path(directory), f"{directory}/data.mdb")
        os.unlink(f"{directory}/lock.mdb")
    failpoint.hit("compact.swapped")
    sync_folder(directory)
    recover(directory)
    failpoint.hit("compact.installed")


def recover(directory: str) -> None:
    """Complete a compaction whose copy is in its place, and remove the remains of any other."""
    if os.path.exists(copy_path(directory)):
        with suppress(FileNotFoundError):
            # first: a checkpoint without a copy means that the copy is in its place
            os.unlink(_checkpoint_path(directory))
        sync_folder(directory)
        os.unlink(copy_path(directory))
    elif os.path.exists(_checkpoint_path(directory)):
        os.rename(_checkpoint_path(directory), f"{directory}/checkpoint")
        sync_folder(directory)


@contextmanager
def files_stay(directory: str) -> Iterator[None]:
    """Keep the data file and the table of readers unchanged within the context. Raises OSError if the directory does
    not exist."""
    with _locked(directory, fcntl.LOCK_SH, patience_s=float("inf")):
        yield


@contextmanager
def _locked(directory: str, operation: int, *, patience_s: float) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline_s = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(PAUSE_S)
        yield
    finally:
        os.close(fd)


def _checkpoint_path(directory: str) -> str:
    return f"{directory}/compacted-checkpoint.new"
