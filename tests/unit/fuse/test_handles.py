from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import cast

import pytest

from headrace.base.cancel import Cancel
from headrace.base.model import FileId
from headrace.fuse.client_protocol import ReadingClient
from headrace.fuse.handles import Handle, HandleCache

ID = FileId(5)


class Partial:
    """A cache file whose bitmap can't be read."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        self.complete = False
        self.closed = False

    def present(self, start: int, end: int) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int:
        return self.fd

    def close(self) -> None:
        os.close(self.fd)
        self.closed = True


def test_a_handle_is_given_back_where_nobody_can_tell_what_is_here(tmp_path: Path) -> None:
    path = tmp_path / "partial"
    path.write_bytes(b"bytes")
    files, file = HandleCache(cast("ReadingClient", None)), Partial(path)
    handle = files.put(ID, Handle(-1, file, 5))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.check_present(handle, 0, 5)
    files.drop(ID)
    assert file.closed
