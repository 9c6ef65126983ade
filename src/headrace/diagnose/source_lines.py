"""Read lines of the programs that a job runs. Their paths come from the job's memory, so the job's user chooses them:
nothing but regular files is opened, and their size is bounded."""

from __future__ import annotations

import os
import stat

FILE_BYTES_MAX = 8 << 20
"""Largest file that is read."""
BYTES_MAX = 64 << 20
"""Most bytes of all files that are kept."""


class SourceLines:
    """Reads each file once."""

    def __init__(self) -> None:
        self._lines_by_path: dict[str, list[bytes]] = {}
        self._bytes = 0

    def text(self, path: str, number: int) -> str:
        """Return a line without the blanks around it; "" if there is none, or the file can't be read. The first line
        has number 1."""
        lines = self._lines_by_path.get(path)
        if lines is None:
            lines = self._lines_by_path[path] = self._read(path)
        return lines[number - 1].strip().decode(errors="replace") if 0 < number <= len(lines) else ""

    def _read(self, path: str) -> list[bytes]:
        try:
            named = os.open(path, os.O_PATH | os.O_CLOEXEC)  # this opens no device, and waits for no pipe
        except (OSError, ValueError):
            return []
        try:
            status = os.fstat(named)
            fits = 0 < status.st_size <= min(FILE_BYTES_MAX, BYTES_MAX - self._bytes)
            if not stat.S_ISREG(status.st_mode) or not fits:
                return []
            with open(f"/proc/self/fd/{named}", "rb", buffering=0) as file:
                text = file.read(status.st_size)
        except OSError:
            return []
        finally:
            os.close(named)
        self._bytes += len(text)
        return text.splitlines()
