from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import cast

import pytest

from headrace.base.cancel import Cancel
from headrace.base.model import FileId
from headrace.fuse.client_protocol import ReadingClient
from headrace.fuse.handles import DROPPED_MAX, Handle, HandleCache

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
    handle = files.put(ID, Handle(-1, file, 5), drops=0)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.check_present(handle, 0, 5)
    files.drop(ID)
    assert file.closed


class Complete:
    """A client with a complete cache file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def complete_path(self, id: FileId) -> str:
        return self._path


@pytest.mark.parametrize("drops_of_others", [0, DROPPED_MAX])
def test_a_handle_that_is_opened_while_its_file_is_dropped_is_used_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drops_of_others: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    files = HandleCache(cast("ReadingClient", Complete(path)))
    open_file = os.open

    def open_then_drop(path: str, flags: int) -> int:
        fd = open_file(path, flags)
        files.drop(ID)
        for number in range(drops_of_others):
            files.drop(FileId(ID + 1 + number))
        return fd

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_then_drop)
        handle = files.acquire(ID)
    assert handle is not None and os.pread(handle.fd, 5, 0) == b"bytes"
    assert files.ids() == []
    files.release(handle)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(handle.fd)
    later = files.acquire(ID)
    assert later is not None and files.ids() == [ID]
    files.release(later)
    files.drop(ID)
