"""A file's handle tells it from a later file of its inode number."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.base import file_handles
from headrace.base.file_handles import file_handle


def test_threads_get_the_handles_of_their_own_files(tmp_path: Path) -> None:
    fds = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(8)]
    try:
        handles = [file_handle(fd) for fd in fds]
        assert len(set(handles)) == 8 and b"" not in handles
        with ThreadPoolExecutor(8) as pool:
            tasks = [pool.submit(lambda fd: {file_handle(fd) for _ in range(500)}, fd) for fd in fds]
        assert [task.result() for task in tasks] == [{handle} for handle in handles]
    finally:
        for fd in fds:
            os.close(fd)


def test_a_closed_descriptor_has_no_handle(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    handle = file_handle(fd)
    os.close(fd)
    assert (handle != b"", file_handle(fd)) == (True, b"")


def test_without_the_call_no_file_has_a_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handles, "_call", lambda: None)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert file_handle(fd) == b""
    finally:
        os.close(fd)
