"""What the kernel says of who may write to a file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from headrace.layer.calls import may_be_written


@pytest.mark.skipif(os.geteuid() != 0, reason="a lease of any file needs root")
def test_who_may_write_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 8192)
    fd = os.open(path, os.O_RDONLY)
    with open(path, "rb") as reader:
        assert not may_be_written(fd)
        assert reader.read(1) == b"x"
    with open(path, "r+b") as file:
        assert may_be_written(fd)
        mapped = mmap.mmap(file.fileno(), 0)
    assert may_be_written(fd)  # by the mapping alone
    mapped.close()
    assert not may_be_written(fd)
    with open(path, "ab"):  # the lease is gone: an open breaks none
        pass
    os.close(fd)
