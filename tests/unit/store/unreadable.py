"""Paths that a cache disk can't read any more, as with a damaged inode."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def unreadable(*paths: str) -> Iterator[None]:
    """Every system call on these paths, and below them, fails with EIO; descriptors stay."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "stat", "lstat", "unlink", "rename", "listdir", "rmdir"):
            patch.setattr(os, name, _refusing(getattr(os, name), paths))
        yield


def _refusing(call: Any, paths: tuple[str, ...]) -> Any:
    def refuse(path: object, *rest: object, **named: object) -> Any:
        if isinstance(path, str) and any(path == bad or path.startswith(f"{bad}/") for bad in paths):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return call(path, *rest, **named)

    return refuse
