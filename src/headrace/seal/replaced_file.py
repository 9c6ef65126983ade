"""Replace small files durably, by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from headrace.base import failpoint
from headrace.base.private_folder import private

UNFINISHED = ".new"
"""Ends the name of a file until its rename."""


@contextmanager
def locked(folder: str, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a directory, which ends with the process. Yield False if another process has it and `wait` is
    not set. Raises FileNotFoundError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def replace_file(path: str, content: bytes) -> None:
    """Replace a file durably. Hold the lock of its directory if several processes write it."""
    with open(f"{path}{UNFINISHED}", "wb", opener=private) as out:
        out.write(content + b"\n")
        out.flush()
        os.fsync(out.fileno())
    failpoint.hit("seal.replacing")
    os.rename(f"{path}{UNFINISHED}", path)
    sync(os.path.dirname(path))


def remove_unfinished(folder: str) -> None:
    """Remove the files that a kill left before their rename. A file that another process writes now stays."""
    with suppress(FileNotFoundError), locked(folder, wait=False) as is_locked:
        for name in os.listdir(folder) if is_locked else ():
            if name.endswith(UNFINISHED):
                os.unlink(os.path.join(folder, name))


def sync(path: str) -> None:
    """Write a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
