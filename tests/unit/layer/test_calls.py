"""What the kernel says of who writes to a file."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from headrace.layer.calls import seen_at_rest


def test_a_file_is_not_seen_as_a_write_will_leave_it(tmp_path: Path) -> None:
    """A long write sets the ctime when it begins."""
    size = 256 << 20
    path, new = tmp_path / "f", b"n" * size
    path.write_bytes(bytes(size))
    writer, reader = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    while time.time_ns() - os.fstat(reader).st_ctime_ns < 20_000_000:
        time.sleep(0.01)
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
