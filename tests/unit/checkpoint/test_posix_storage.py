"""Files of a directory: writes that bypass the page cache, where the device can't do that."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.base.errors import CheckpointFailedError
from headrace.checkpoint.memory import page_aligned
from headrace.checkpoint.posix_storage import PosixStorage
from headrace.checkpoint.storage import ALIGN_BYTES

WAIT_S = 60.0


def test_writes_of_two_threads_that_the_device_refuses_at_once_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PosixStorage(str(tmp_path)).create("pack")
    writer._direct = True  # whatever this test's file system can do
    pwrite, use_page_cache = os.pwrite, writer._use_page_cache
    both, switched, refused = threading.Barrier(2, timeout=WAIT_S), threading.Event(), set[int]()

    def refuse_once(fd: int, data: memoryview, offset: int) -> int:
        """Refuse both threads their first write; the second one hears it when the first one has reacted."""
        thread = threading.get_ident()
        if thread in refused:
            return pwrite(fd, data, offset)
        refused.add(thread)
        if both.wait() == 1:
            assert switched.wait(WAIT_S)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def switch() -> None:
        use_page_cache()
        switched.set()

    monkeypatch.setattr(os, "pwrite", refuse_once)
    monkeypatch.setattr(writer, "_use_page_cache", switch)
    memory = page_aligned(2 * ALIGN_BYTES)
    memory[:ALIGN_BYTES], memory[ALIGN_BYTES:] = 1, 2
    with ThreadPoolExecutor(2) as threads:
        writes = [
            threads.submit(writer.write, memory[start : start + ALIGN_BYTES].data, start)
            for start in (0, ALIGN_BYTES)
        ]
        for write in writes:
            write.result()
    writer.close()
    assert (tmp_path / "pack").read_bytes() == memory.tobytes()


def test_a_write_that_is_invalid_without_o_direct_too_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PosixStorage(str(tmp_path)).create("pack")
    writer._direct = True

    def refuse(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(CheckpointFailedError):
        writer.write(page_aligned(ALIGN_BYTES).data, 0)
    writer.close()
