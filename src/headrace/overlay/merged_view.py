"""Look up names of the merged tree: the upper layer's entries over the origins' entries in the index.

No call changes a name or waits for the node.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Protocol

from headrace.base.cancel import Cancel
from headrace.base.model import ROOT_ID, Entry, FileId, Kind, Version
from headrace.base.namespace_path import join
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.upper import Hidden, Upper

FileStat = os.stat_result | Entry
"""The status of a name in the upper layer, or the entry of a name that only the origin has."""


class OpenLower(Protocol):
    def wait(self, start: int, end: int, cancel: Cancel | None = None) -> int: ...
    def close(self) -> None: ...


class Lower(Protocol):
    """Provide the names and bytes of the origins, as the client has them. `known` reads the index, however old it
    is."""

    def lookup_stale(self, parent: FileId, name: bytes) -> Entry | None: ...
    def entry(self, id: FileId) -> Entry | None: ...
    def children(self, directory: FileId, after: bytes = b"") -> Iterator[Entry]: ...
    def ensure_listed(self, directory: FileId, cancel: Cancel | None = None) -> None: ...
    def listing_fresh(self, directory: FileId) -> bool: ...
    def mount_of(self, path: bytes) -> str: ...
    def key_fits(self, path: bytes) -> bool: ...
    def open(self, id: FileId, cancel: Cancel | None = None) -> OpenLower: ...


class MergedView:
    """Show the upper layer over the origins' names. modes: the write modes of its paths."""

    def __init__(self, lower: Lower, upper: Upper, modes: WriteModes) -> None:
        self._lower = lower
        self._upper = upper
        self.modes = modes

    def lookup_upper(self, path: bytes) -> os.stat_result | Hidden | None:
        """Return the upper layer's entry at a path; None if the origin decides."""
        return None if self.modes.of(path) is WriteMode.OFF else self._upper.lookup(path)

    def lookup(self, path: bytes) -> FileStat | None:
        """Return the visible entry at a path. The caller makes sure that the index is fresh."""
        status = self.lookup_upper(path)
        if isinstance(status, Hidden):
            return None
        return status if status is not None else self.lookup_lower(path)

    def lookup_lower(self, path: bytes) -> Entry | None:
        """Return the index's entry at a path, even if the upper layer hides it."""
        entry = self._lower.entry(ROOT_ID)
        for name in filter(None, path.split(b"/")):
            if entry is None or entry.kind is not Kind.DIRECTORY:
                return None
            entry = self._lower.lookup_stale(entry.id, name)
        return entry

    def names(self, directory: bytes) -> list[tuple[bytes, bool]]:
        """List the names that the upper layer has in a directory, sorted, and whether each is visible. Names that are
        read-only by their write mode are left out."""
        names = self._upper.names(directory)
        if self.modes.of(directory) is WriteMode.OFF:
            names = {
                n: visible
                for n, visible in names.items()
                if self.modes.of(join(directory, n)) is not WriteMode.OFF
            }
        return sorted(names.items())

    def lookup_existing(self, path: bytes) -> FileStat:
        status = self.lookup(path)
        if status is None:
            raise os_error(errno.ENOENT, path)
        return status

    def check_writable(self, *paths: bytes) -> None:
        for path in paths:
            if not self.modes.takes_changes(path):
                raise os_error(errno.EROFS, path)

    def is_put(self, path: bytes) -> bool:
        return self.modes.of(path) in (WriteMode.BACK, WriteMode.THROUGH)

    def base(self, path: bytes) -> Version | None:
        """Return the origin's version that a file would replace if it were created at a path now."""
        if self.lookup_upper(path) is not None or self._upper.at(path).exists():
            return self._upper.base_of(path)
        entry = self.lookup_lower(path)
        return None if entry is None or entry.kind is not Kind.FILE else entry.version

    def is_empty(self, path: bytes) -> bool:
        hidden = set()
        for name, visible in self.names(path):
            if visible:
                return False
            hidden.add(name)
        entry = self.lookup_lower(path)
        if entry is None or entry.kind is not Kind.DIRECTORY:
            return True
        return all(child.name in hidden for child in self._lower.children(entry.id))

    def hides_any(self, path: bytes) -> bool:
        return any(not visible for _, visible in self.names(path))

    def check_same_area(self, source: bytes, target: bytes) -> None:
        """Raise EXDEV between mounts of origins, or write modes. `mv` then copies. EBUSY for a directory above an
        exclusive one, which is a mountpoint."""
        if any(top.startswith(source + b"/") for top in self.modes.exclusive_tops):
            raise os_error(errno.EBUSY, source)
        if self.modes.of(source) is not self.modes.of(target) or (
            self._lower.mount_of(source) != self._lower.mount_of(target)
        ):
            raise os_error(errno.EXDEV, target)


def is_directory(status: FileStat) -> bool:
    return status.kind is Kind.DIRECTORY if isinstance(status, Entry) else stat.S_ISDIR(status.st_mode)


def os_error(number: int, path: bytes) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))
