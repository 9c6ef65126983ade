"""A disk that can't read a directory, an entry or a mark of the upper layer."""

from __future__ import annotations

import errno
import os

import pytest

from headrace.base.beneath import Root, SafePath


class FailingDirectory:
    """A directory whose names can't be read: `folder` fails for this path. attempts: how often that was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: bytes, number: int = errno.EIO) -> None:
        self.attempts = 0
        self.is_mended = False
        folder = Root.folder

        def fail(root: Root, directory: bytes) -> int:
            if directory == path and root.path.endswith(b"/tree") and not self.is_mended:
                self.attempts += 1
                raise OSError(number, os.strerror(number))
            return folder(root, directory)

        monkeypatch.setattr(Root, "folder", fail)


class FailingNames:
    """An entry whose status can't be read, by its name. attempts: how often that was tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: bytes, number: int = errno.EIO) -> None:
        self.attempts = 0
        self.is_mended = False
        stat = os.stat

        def fail(path: object, **options: object) -> os.stat_result:
            is_name = isinstance(path, bytes) and path.rsplit(b"/", 1)[-1] == name
            if is_name and "dir_fd" in options and not self.is_mended:
                self.attempts += 1
                raise OSError(number, os.strerror(number))
            return stat(path, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "stat", fail)


class FailingMarks:
    """Extended attributes that can't be read, below a root whose path has this end; b"" for all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: bytes, number: int) -> None:
        read, read_safely = os.getxattr, SafePath.getxattr

        def fail(*_: object, **__: object) -> bytes:
            raise OSError(number, os.strerror(number))

        def fail_below(path: SafePath, attribute: str | bytes) -> bytes:
            return fail() if path.root.path.endswith(root) else read_safely(path, attribute)

        monkeypatch.setattr(SafePath, "getxattr", fail_below)
        monkeypatch.setattr(os, "getxattr", read if root else fail)
