"""The kernel says who may write to a file, and who writes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from headrace.overlay.syscalls import birth_ns, seen_at_rest, tick_left_s
from headrace.testing.waiting import wait_for


def test_a_file_keeps_the_time_of_its_birth(tmp_path: Path) -> None:
    def birth_of(path: Path) -> int:
        fd = os.open(path, os.O_PATH)
        born_ns = birth_ns(fd)
        os.close(fd)
        if born_ns is None:
            pytest.skip("the file system keeps no time of birth")
        return born_ns

    path, new = tmp_path / "f", tmp_path / "new"
    path.write_bytes(b"x")
    status, born_ns = path.stat(), birth_of(path)
    assert 0 <= status.st_ctime_ns - born_ns < 60_000_000_000
    wait_for(lambda: not tick_left_s(path.stat()))
    path.rename(new)
    os.utime(new, ns=(1, 1))
    assert birth_of(new) == born_ns
    path.write_bytes(b"x")
    assert birth_of(path) > status.st_ctime_ns


def test_a_file_is_not_seen_as_a_write_will_leave_it(tmp_path: Path) -> None:
    """A long write sets the ctime when it begins."""
    size = 256 << 20
    path, new = tmp_path / "f", b"n" * size
    path.write_bytes(bytes(size))
    writer, reader = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    wait_for(lambda: time.time_ns() - os.fstat(reader).st_ctime_ns >= 20_000_000)
    before = os.fstat(reader).st_ctime_ns
    thread = threading.Thread(target=os.pwrite, args=(writer, new, 0))
    thread.start()
    looks: list[tuple[int, bytes]] = []
    while not looks or looks[-1][0] == before:  # until one has the ctime of the write
        looks.append((seen_at_rest(reader).st_ctime_ns, os.pread(reader, 1, size - 1)))
    thread.join()
    ctime_ns = os.fstat(reader).st_ctime_ns
    assert ctime_ns != before
    assert [byte for seen_ns, byte in looks if seen_ns == ctime_ns] == [b"n"]
    os.close(writer)
    os.close(reader)
