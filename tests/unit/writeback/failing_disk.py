"""A disk that can't read a directory, an entry or a mark of the upper layer."""

from __future__ import annotations

import errno
import os

import pytest

from headrace.base.beneath import Root


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
