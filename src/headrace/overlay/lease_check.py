"""Decide whether a change of names must first reach the cluster's records, by the marks that the node sets on
directories.
"""

from __future__ import annotations

from headrace.base.namespace_path import split
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.upper import Upper


class LeaseRequiredError(Exception):
    """Means that a name is to be created exclusively in a directory for which the node has no lease. Acquire the
    lease (`NodeClient.acquire_lease`), then try again."""

    def __init__(self, folder: bytes) -> None:
        self.folder = folder


class LeaseCheck:
    """Checks marks of the upper layer while the caller holds the layer's lock. The file of the marks is opened when
    it is first needed, because the node creates the layer."""

    def __init__(self, upper: Upper, modes: WriteModes) -> None:
        self._upper = upper
        self._modes = modes
        self._marks: DirectoryFlags | None = None

    def is_published(self, path: bytes) -> bool:
        """Return whether other nodes know that the path's directory has dirty names, or need not know. When close
        waits for replicas, that wait includes this."""
        if self._modes.waits(path) or self._modes.of(path) is not WriteMode.BACK or not self._flags().is_on:
            return True
        folder = split(path)[0]
        return self._flags().is_published(self._upper.at(folder), folder)

    def check_lease(self, path: bytes) -> None:
        """Check the lease before a name is created that no other node may create at the same time. The name's
        directory must be in the upper layer. Raise LeaseRequiredError."""
        folder = split(path)[0]
        if self._modes.of(path) is not WriteMode.BACK or not self._flags().is_on:
            return
        if not self._flags().is_leased(self._upper.at(folder), folder):
            raise LeaseRequiredError(folder)

    def _flags(self) -> DirectoryFlags:
        if self._marks is None:
            self._marks = DirectoryFlags(self._upper.marks_path)
        return self._marks
