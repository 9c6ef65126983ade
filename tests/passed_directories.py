"""Keep the directories of tests that passed until all tests of a process are over, without their large files.

An ext4 without a journal, as the disk of a virtual machine may have, does not use an inode again within a minute or
more of its removal. A new file looks at each of these inodes, one by one. Where each test removed its directory, that
took 6 % of the processor time of a run (docs/decisions/0081).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

LARGE_BYTES = 1 << 16
"""A file with more than this on the disk is removed at once. Without that, a run would fill a small disk."""
_BLOCK_BYTES = 512
"""Unit of st_blocks, by stat(2)."""


class PassedDirectories:
    """Moves directories of tests that passed below one folder. folder: must not exist."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._count = 0

    def add(self, directory: Path) -> None:
        """Remove the large files of a directory, and move it. It stays where it is if it can't be moved."""
        remove_large_files(directory)
        with contextlib.suppress(OSError):
            directory.rename(self._folder / str(self._count))
            self._count += 1

    def remove(self) -> None:
        """Remove all of them, as far as that is possible."""
        shutil.rmtree(self._folder, ignore_errors=True)


def remove_large_files(directory: Path) -> None:
    """Remove the large files below a directory. What can't be looked at, or removed, stays."""
    folders = [os.fspath(directory)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES > LARGE_BYTES:
                    os.unlink(entry.path)
