"""Define the operations of a checkpoint storage.

A `CheckpointStorage` handles bytes and names; layout.py defines the meaning of names. Names are relative, with `/`
between directories. All calls block, and are thread-safe. Foreign errors are raised as errors of Headrace.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from typing import ClassVar, Protocol

from headrace.base.errors import CorruptCheckpointError

ALIGN_BYTES = 4096
"""Alignment of offsets, lengths and addresses that may bypass the page cache (O_DIRECT)."""


class FileWriter(Protocol):
    """Write a new file."""

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data` at the offset. Concurrent writes must not overlap."""

    def sync(self) -> None:
        """Make the bytes and the length durable, but not yet the name (`sync_folder`)."""

    def close(self) -> None: ...


class FileReader(Protocol):
    """Read a file, also after its name is removed."""

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill `target`. Raises CheckpointFailedError if the file ends before that."""

    def map_into(self, target: memoryview, offset: int) -> bool:
        """Map the file's own pages, privately, in place of the target's, which must be a mapping of the caller's.

        Returns False, and changes nothing, if the pages are not in memory or can't be mapped.
        """

    def close(self) -> None: ...


class SaveClaim:
    """Prove that the owner of a claim lives: it holds a lock on the open file until it releases it or ends.

    A forked child closes the file at once. It would keep the lock after the end of the owner, and an object of the
    child, such as a copy of the saver, could release the lock of the owner.
    """

    _held: ClassVar[weakref.WeakSet[SaveClaim]] = weakref.WeakSet()

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held.add(self)

    def release(self) -> None:
        """Unlock and close. A child that was not forked by Python, and has the descriptor, loses the lock, too."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    @classmethod
    def close_in_child(cls) -> None:
        """Close the claims of the parent, and keep their locks. A forked child calls it."""
        for claim in list(cls._held):
            fd, claim._fd = claim._fd, -1
            if fd >= 0:
                os.close(fd)


os.register_at_fork(after_in_child=SaveClaim.close_in_child)


class CheckpointStorage(Protocol):
    """Store files by name.

    Raises PathNotFoundError for missing files, CheckpointNoSpaceError and CheckpointFailedError for other failures.
    """

    @property
    def name(self) -> str:
        """Return the name for messages."""

    def create(self, name: str) -> FileWriter:
        """Create a file that does not exist yet."""

    def open(self, name: str) -> FileReader: ...

    def read(self, name: str, *, bytes_max: int) -> bytes:
        """Return the first bytes of a file, all if it has no more. Raises CorruptCheckpointError for anything but a
        regular file."""

    def size_bytes(self, name: str) -> int: ...

    def rename(self, name: str, new_name: str) -> None:
        """Rename atomically, and replace an existing file. Durable after `sync_folder`."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""

    def make_folder(self, folder: str) -> None:
        """Create a directory and its parents, durable on return, unless it exists."""

    def remove_folder(self, folder: str) -> None:
        """Remove a directory if it exists and is empty."""

    def sync_folder(self, folder: str) -> None:
        """Make the names in the directory durable."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a directory, sorted; empty if it does not exist. Raises NotADirectoryPathError."""

    def claim(self, name: str, data: bytes) -> SaveClaim:
        """Create a file with `data` that this process owns. It is visible on return, but not durable."""

    def is_claimed(self, name: str) -> bool:
        """Return whether the claim's owner lives, as far as this host can know.

        If it cannot know, the claim counts for a day after a process of this host first checked it. Anything but a
        regular file has no owner.
        """


def read_whole(storage: CheckpointStorage, name: str, *, bytes_max: int) -> bytes:
    """Return a file. Raises CorruptCheckpointError for one of more than `bytes_max`, before it allocates memory for it,
    and the errors of `read`."""
    size_bytes = storage.size_bytes(name)
    if size_bytes <= bytes_max:
        data = storage.read(name, bytes_max=bytes_max + 1)
        size_bytes = len(data)
    if size_bytes > bytes_max:
        why = f"it has {size_bytes} bytes, more than the {bytes_max} that are allowed"
        raise CorruptCheckpointError(f"{storage.name}/{name}", why=why)
    return data
