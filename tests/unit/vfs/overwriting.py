"""A program that overwrites a file in place by one call, while a test reads it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from headrace.overlay.syscalls import tick_left_s
from headrace.testing.waiting import LIMIT_S, wait_for


def start_overwriting(file: Path, data: bytes) -> threading.Thread:
    """Start a thread that overwrites a file. Return it when the call is about to begin. The file's last change is older
    than a tick of the kernel's clock, so the new bytes have another time."""
    has_begun = threading.Event()
    wait_for(lambda: not tick_left_s(file.stat()))

    def overwrite() -> None:
        fd = os.open(file, os.O_WRONLY)
        has_begun.set()
        os.pwrite(fd, data, 0)
        os.close(fd)

    writer = threading.Thread(target=overwrite)
    writer.start()
    assert has_begun.wait(LIMIT_S)
    return writer
