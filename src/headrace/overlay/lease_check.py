"""Check, by the marks that the node sets on directories, whether a change of names must first reach the cluster's
records."""

from __future__ import annotations

from headrace.base.namespace_path import split
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.lease_marks import DirectoryFlags
from headrace.overlay.upper import Upper


class LeaseRequiredError(Exception):
    """Report that a name is to be created exclusively in a directory for which the node has no lease. The caller
    acquires the lease (`NodeClient.acquire_lease`), and then retries."""

    def __init__(self, directory: bytes) -> None:
        self.folder = directory


class LeaseCheck:
    """Check marks of the upper layer while the caller holds the layer's lock. The file of the marks is opened at its
    first use, because the node creates the layer."""

    def __init__(self, upper: Upper, modes: WriteModes) -> None:
        self._upper = upper
        self._modes = modes
        self._marks: DirectoryFlags | None = None

    def is_published(self, path: bytes) -> bool:
        """Return whether the cluster's records cover the directory's dirty names, or need not. If close waits for
        replicas, that wait includes the records."""
        if self._modes.waits(path) or self._modes.of(path) is not WriteMode.BACK or not self._flags().is_on:
            return True
        directory = split(path)[0]
        return self._flags().is_published(self._upper.at(directory), directory)

    def check_lease(self, path: bytes) -> None:
        """Raise LeaseRequiredError if another node may create this name at the same time. The name's directory must be
        in the upper layer."""
        directory = split(path)[0]
        if self._modes.of(path) is not WriteMode.BACK or not self._flags().is_on:
            return
        if not self._flags().is_leased(self._upper.at(directory), directory):
            raise LeaseRequiredError(directory)

    def _flags(self) -> DirectoryFlags:
        if self._marks is None:
            self._marks = DirectoryFlags(self._upper.marks_path)
        return self._marks
