"""Read memory while another process writes to it. What it has at any moment is what a kill at that moment leaves."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def written_words(code: str, fd: int) -> Iterator[memoryview]:
    """Run code that writes to shared memory for ever, and map its words of 8 bytes. sys.argv[1] is the descriptor. The
    code prints a line when all words are valid."""
    words = [sys.executable, "-c", code, str(fd)]
    with (
        mmap.mmap(fd, 0) as memory,
        memoryview(memory) as whole,
        whole.cast("Q") as mapped,
        subprocess.Popen(words, pass_fds=(fd,), stdout=subprocess.PIPE) as program,
    ):
        try:
            assert program.stdout is not None
            assert program.stdout.readline()
            yield mapped
        finally:
            program.kill()
