"""Keep the directories of tests that passed until all tests of a process are over, with empty files.

An ext4 without a journal, as the disk of a virtual machine may have, does not use an inode again within a minute or
more of its removal. A new file looks at each of these inodes, one by one. Where each test removed its directory, that
took 6 % of the processor time of a run (docs/decisions/0081).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from headrace.base.file_leases import may_be_open


class PassedDirectories:
    """Moves directories of tests that passed, whose names differ, below one folder. folder: must not exist."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    def add(self, directory: Path) -> None:
        """Empty the files of a directory, and move it. It stays where it is if it can't be moved."""
        empty_files(directory)
        with contextlib.suppress(OSError):
            directory.rename(self._folder / directory.name)

    def remove(self) -> None:
        """Remove all of them, as far as that is possible."""
        shutil.rmtree(self._folder, ignore_errors=True)


def empty_files(directory: Path) -> None:
    """Take the bytes of all files below a directory off the disk. Otherwise a run would fill it, and the removal of
    files that have come to the disk takes five times as long. What can't be looked at, or emptied, stays."""
    folders = [os.fspath(directory)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    empty_file(entry)


def empty_file(entry: os.DirEntry[str]) -> None:
    """Empty a file. Remove a name of a file that is open or mapped, as an index that a test left open, or that may be
    needed by another name."""
    status = entry.stat(follow_symlinks=False)
    if not (status.st_size or status.st_blocks):
        return
    with contextlib.suppress(OSError):
        fd = os.open(entry.path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            if status.st_nlink == 1 and not may_be_open(fd):
                os.ftruncate(fd, 0)
            else:
                os.unlink(entry.path)
        finally:
            os.close(fd)
