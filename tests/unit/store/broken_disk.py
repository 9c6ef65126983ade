"""A cache disk that fails in the middle of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.store.volume import Volume


@contextmanager
def broken_disk(disk: Volume, error: int) -> Iterator[None]:
    """Nothing can be created, written or deleted on a disk; what it has can be read."""
    is_there = f"{disk.folder}/"
    real_open, real_unlink, real_pwrite, real_rename = os.open, os.unlink, os.pwrite, os.rename

    def refuse(path: str) -> None:
        if path.startswith(is_there):
            raise OSError(error, os.strerror(error))

    def open_(path: str, flags: int, *rest: int) -> int:
        if flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY):
            refuse(path)
        return real_open(path, flags, *rest)

    def unlink(path: str) -> None:
        refuse(path)
        real_unlink(path)

    def pwrite(fd: int, body: bytes, offset: int) -> int:
        refuse(os.readlink(f"/proc/self/fd/{fd}"))
        return real_pwrite(fd, body, offset)

    def rename(source: str, target: str) -> None:
        refuse(source)
        real_rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        for name, call in (("open", open_), ("unlink", unlink), ("pwrite", pwrite), ("rename", rename)):
            patch.setattr(os, name, call)
        yield
