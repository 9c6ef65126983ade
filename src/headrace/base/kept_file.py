"""Keep a small document in a file that outlives the process, and a crash of the machine."""

from __future__ import annotations

import errno
import os
import threading

from headrace.base.errors import UsageError
from headrace.base.private_folder import make_private


class KeptFile:
    """A file in a folder of this user only, which the first write creates. Calls wait for the disk; any thread may make
    them. Raise OSError.

    bytes_max: of the document.
    """

    def __init__(self, folder: str, name: str, *, bytes_max: int) -> None:
        self._folder = folder
        self._path = os.path.join(folder, name)
        self._bytes_max = bytes_max
        self._lock = threading.Lock()

    def read(self) -> bytes | None:
        """Return the document, or None before the first write. Of a longer one, return a byte more than is allowed."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                return file.read(self._bytes_max + 1)
        except FileNotFoundError:
            return None

    def write(self, document: bytes) -> None:
        """Replace the document. It is durable on return."""
        with self._lock:
            self._write(document)

    def replace(self, old: bytes | None, new: bytes) -> bool:
        """Replace the document durably. Return False, and write nothing, when it is not `old`."""
        with self._lock:
            if self.read() != old:
                return False
            self._write(new)
        return True

    def _write(self, document: bytes) -> None:
        try:
            make_private(self._folder)
        except UsageError as error:
            raise PermissionError(errno.EACCES, str(error)) from error
        draft = self._path + ".new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600), "wb") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, self._path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
