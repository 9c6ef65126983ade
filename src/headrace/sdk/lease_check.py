"""What a change of names owes to the other nodes of the cluster, by the marks that the node sets on folders."""

from __future__ import annotations

from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.upper import Upper, split


class LeaseRequiredError(Exception):
    """A new name is to be made in a folder, exclusively: the node must have the right to it first (`Client.claim`), and
    then again."""

    def __init__(self, folder: bytes) -> None:
        self.folder = folder


class LeaseCheck:
    """The layer's lock is held. The file of the marks is opened when it is needed: the node makes the layer."""

    def __init__(self, upper: Upper, modes: WriteModes) -> None:
        self._upper = upper
        self._modes = modes
        self._marks: DirectoryFlags | None = None

    def know(self, path: bytes) -> bool:
        """Whether they know that something is written in the folder of a path, or need not; where close waits for
        copies it waits for that, too."""
        if self._modes.waits(path) or self._modes.of(path) is not WriteMode.BACK or not self._opened().is_on:
            return True
        folder = split(path)[0]
        return self._opened().is_published(self._upper.at(folder), folder)

    def check_right(self, path: bytes) -> None:
        """Before a name is made that must not be made on another node at the same time; its folder is in the upper
        layer. LeaseRequiredError."""
        folder = split(path)[0]
        if self._modes.of(path) is not WriteMode.BACK or not self._opened().is_on:
            return
        if not self._opened().is_leased(self._upper.at(folder), folder):
            raise LeaseRequiredError(folder)

    def _opened(self) -> DirectoryFlags:
        if self._marks is None:
            self._marks = DirectoryFlags(self._upper.marks_path)
        return self._marks
