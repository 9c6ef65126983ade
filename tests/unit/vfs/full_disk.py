"""A file system for gateways whose disk is full."""

from __future__ import annotations

import os

import pytest

from headrace.vfs.streams import WriteStream


class FullVfs:
    """Creates files on a full disk. commits: as of WriteStream. abandoned: how many of them were given up."""

    def __init__(self, *, commits: bool = True) -> None:
        self._commits = commits
        self.abandoned = 0

    def create(self, path: bytes, **_: object) -> WriteStream:
        return WriteStream(
            os.open("/dev/full", os.O_RDWR | os.O_CLOEXEC),
            os.fsdecode(path),
            finish=lambda _: pytest.fail("the file got its name"),
            abandon=self._abandon,
            commits=self._commits,
        )

    def _abandon(self, fd: int) -> None:
        self.abandoned += 1
