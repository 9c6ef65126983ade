"""Hold a new file until all its bytes are there and it gets its name: in the merged tree, or as a part of an upload."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from headrace.base.beneath import SafePath


class StagedFile:
    """Opens an empty file without a name, of which nothing remains when this process dies. If the file system does
    not support that, the file has a temporary name from the start. directory: any on that file system. new_path:
    returns an unused temporary path. fd: the caller closes it. Raises OSError."""

    def __init__(self, directory: SafePath, new_path: Callable[[], SafePath], *, mode: int = 0o666) -> None:
        self._new_path = new_path
        self._path: SafePath | None = None
        try:
            self.fd = directory.open(os.O_RDWR | os.O_TMPFILE, mode)
        except OSError:
            path = new_path()
            self.fd = path.open(os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
            self._path = path

    def path(self) -> SafePath:
        """Return the temporary path, which the file gets with the first call. Raises OSError."""
        if self._path is None:
            path = self._new_path()
            path.link_open_file(self.fd)
            self._path = path
        return self._path

    def discard(self) -> None:
        """Unlink the file if it still has its temporary path."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
