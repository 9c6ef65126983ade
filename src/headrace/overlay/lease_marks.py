"""Share with sessions the state that the cluster's records give a directory of the upper layer. A session then need not
call the node.

There are two marks, attributes of the directory. Published: the cluster's records cover the directory's dirty names.
Leased: only this node creates names there exclusively (O_EXCL, mkdir, link). The node sets and clears marks with the
layer's lock held. A session reads them with the lock held, in the same step that changes the directory.

A mark is valid only if its generation is the one in a file beside the layer. A lease also ends at the time in that
file, which the node extends while it is a member of the cluster.
"""

from __future__ import annotations

import struct

import xxhash

from headrace.base import boot_clock
from headrace.base.beneath import SafePath
from headrace.overlay.mark_names import MARKS
from headrace.overlay.shared_page import shared_page

_STATE = struct.Struct("<QQ")
"""Generation of the marks, and end of the leases (CLOCK_BOOTTIME, ns)."""
_FOREVER_S = 1e9
"""Latest end of a lease that the page can hold, in seconds."""


class DirectoryFlags:
    """Hold the marks of one upper layer. path: a file beside the layer. Generation 0 means that there is no cluster and
    that marks are not used."""

    def __init__(self, path: str) -> None:
        self._map = shared_page(path)

    @property
    def generation(self) -> int:
        return int(_STATE.unpack_from(self._map)[0])

    @property
    def is_on(self) -> bool:
        """Return whether sessions must check marks."""
        return self.generation != 0

    def begin(self, generation: int) -> None:
        """Invalidate all earlier marks, and end all leases."""
        _STATE.pack_into(self._map, 0, generation, 0)

    def extend_leases(self, until_s: float) -> None:
        """Extend the leases. until_s: CLOCK_BOOTTIME, the clock of all processes of a host."""
        _STATE.pack_into(self._map, 0, self.generation, int(min(max(0.0, until_s), _FOREVER_S) * 1e9))

    def is_published(self, upper_path: SafePath, directory: bytes) -> bool:
        """Return whether the mark `published` is valid. upper_path: the directory in the layer. directory: its path in
        the namespace; a mark that was renamed with its directory is invalid."""
        return self._has(upper_path, directory, MARKS.published)

    def is_leased(self, upper_path: SafePath, directory: bytes) -> bool:
        """Return whether the mark `leased` is valid."""
        return boot_clock.now_ns() < _STATE.unpack_from(self._map)[1] and self._has(
            upper_path, directory, MARKS.leased
        )

    def set(self, upper_path: SafePath, directory: bytes, mark: str) -> bool:
        """Set a mark. Return False if the directory does not exist."""
        try:
            upper_path.setxattr(mark, self._value(directory))
        except OSError:
            return False
        return True

    def clear(self, upper_path: SafePath, mark: str) -> bool:
        """Clear a mark. Return False if it is not there, or can't be cleared."""
        try:
            upper_path.removexattr(mark)
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._map.close()

    def _has(self, upper_path: SafePath, directory: bytes, mark: str) -> bool:
        try:
            return upper_path.getxattr(mark) == self._value(directory)
        except OSError:
            return False

    def _value(self, directory: bytes) -> bytes:
        return b"%x-%x" % (self.generation, xxhash.xxh3_64_intdigest(directory))
