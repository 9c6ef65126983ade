"""Hold a new file in the upper layer's work directory until it gets its name in the merged tree."""

from __future__ import annotations

import contextlib
import os

from headrace.base.beneath import SafePath
from headrace.overlay.upper import Upper


class StagedFile:
    """Opens an empty file without a name, of which nothing remains when this process dies. If the file system does
    not support that, the file has a name in the work directory from the start. fd: the caller closes it."""

    def __init__(self, upper: Upper) -> None:
        self._upper = upper
        self._path: SafePath | None = None
        try:
            self.fd = upper.work.at(b"/").open(os.O_RDWR | os.O_TMPFILE)
        except OSError:
            self._path = upper.new()
            self.fd = self._path.open(os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def path(self) -> SafePath:
        """Return the path in the work directory, which the file gets with the first call."""
        if self._path is None:
            self._path = self._upper.new()
            self._path.link_open_file(self.fd)
        return self._path

    def discard(self) -> None:
        """Unlink the file if it is still in the work directory."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
